"""What is done with experiments: run, simulated, swept, validated, compared, run again."""
