#!/bin/sh
# Makes every file of links/ and availability/ anew, byte for byte. A folder other than this one may be given.
set -e
out=${1:-$(dirname "$0")}
mkdir -p "$out/links" "$out/availability"
links() { name=$1; shift; testbed traces generate links "$@" --out "$out/links/$name.csv"; }
availability() { name=$1; shift; testbed traces generate availability "$@" --out "$out/availability/$name.csv"; }

links dsl --preset dsl --homes 12 --seed 1
links fttc --preset fttc --homes 12 --seed 2
links cable --preset cable --homes 12 --seed 3
links fibre --preset fibre --homes 12 --seed 4
links lte --preset lte --homes 12 --seed 5
links satellite --preset satellite --homes 12 --seed 6
links mixed --preset mixed --homes 24 --seed 7
links quickstart --preset fttc=2 --preset cable=1 --preset lte=3 --duration 2h --step 5min --start-hour 18 --seed 8

availability evening --preset evening --devices 24 --seed 1
availability overnight-idle --preset overnight-idle --devices 24 --seed 2
availability office --preset office --devices 24 --seed 3
availability flaky --preset flaky --devices 24 --seed 4
availability quickstart --preset two-leave --devices 6 --seed 29
