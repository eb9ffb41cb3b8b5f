/* A delay line in the manner of Mahimahi's DelayShell, for comparison: a TUN device at each end, a process for each
 * direction that reads one packet at a time, holds it for a fixed time, and writes it to the other end.
 * (R. Netravali et al.: Mahimahi: Accurate Record-and-Replay for HTTP, USENIX ATC 2015, section 3.1.)
 *
 *     packet_shell NETNS_A NETNS_B DELAY_US TICK_US
 *
 * TICK_US: the clock's resolution. Mahimahi's is 1000: it reads and waits in whole milliseconds. Runs until its standard input ends, then prints the
 * processor time of both directions in seconds.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PACKET = 2048, ROOM = 1 << 15 }; /* packets that wait at once; a power of two */

typedef struct { int64_t due; int length; char data[PACKET]; } waiting_t;

static void check(long result, const char *what)
{
    if (result < 0) {
        perror(what);
        exit(1);
    }
}

static int64_t clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int open_tun(const char *netns)
{
    int ns = open(netns, O_RDONLY), tun;
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    check(ns, netns);
    check(setns(ns, CLONE_NEWNET), "setns");
    close(ns);
    check(tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK), "/dev/net/tun");
    strcpy(request.ifr_name, "shell0");
    check(ioctl(tun, TUNSETIFF, &request), "TUNSETIFF");
    return tun;
}

/* One direction, until killed. */
static void ferry(int from, int to, int64_t delay, int64_t tick)
{
    waiting_t *ring = malloc(sizeof *ring * ROOM);
    uint32_t head = 0, count = 0;
    while (ring) {
        int64_t now = clock_ns() / tick * tick;
        while (count && ring[head].due <= now) {
            if (write(to, ring[head].data, (size_t)ring[head].length) < 0) { /* the other end is gone or full: a loss */ }
            head = (head + 1) & (ROOM - 1);
            count--;
        }
        int64_t wait = count ? ring[head].due - now : 1000000000;
        struct timespec t = {wait / 1000000000, wait % 1000000000};
        struct pollfd fd = {from, POLLIN, 0};
        if (ppoll(&fd, 1, &t, NULL) <= 0 || count == ROOM)
            continue;
        waiting_t *new = &ring[(head + count) & (ROOM - 1)];
        new->length = (int)read(from, new->data, PACKET);
        if (new->length <= 0)
            continue;
        new->due = clock_ns() / tick * tick + delay;
        count++;
    }
    exit(1);
}

int main(int count, char **args)
{
    if (count != 5) {
        fputs("usage: packet_shell NETNS_A NETNS_B DELAY_US TICK_US\n", stderr);
        return 2;
    }
    int ends[2] = {open_tun(args[1]), open_tun(args[2])}, status;
    int64_t delay = atoll(args[3]) * 1000, tick = atoll(args[4]) * 1000;
    pid_t children[2];
    for (int i = 0; i < 2; i++)
        if (!(children[i] = fork())) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            ferry(ends[i], ends[!i], delay, tick);
        }
    puts("ready");
    fflush(stdout);
    char byte;
    while (read(0, &byte, 1) > 0)
        ;
    for (int i = 0; i < 2; i++) {
        kill(children[i], SIGKILL);
        waitpid(children[i], &status, 0);
    }
    struct rusage used;
    getrusage(RUSAGE_CHILDREN, &used);
    printf("%.6f\n", (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec)
                         + 1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec));
    return 0;
}
