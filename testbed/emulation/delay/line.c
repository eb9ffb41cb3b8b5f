/* The delay line's inner loop, compiled: what delay_line.py and lanes.py do, several times faster.
 *
 * Plain C without Python's headers, called through ctypes (compiled_line.py), so that any C compiler builds it
 * and nothing is lost without one: the Python loop then takes over. Both give the n-th packet of a lane the same
 * fate for the same seed. Times are CLOCK_MONOTONIC in nanoseconds.
 *
 * A kernel that does not preempt system calls (PREEMPT_NONE) lets a thread wait, whatever its priority, while another
 * process is in a long one on the same processor. So a second thread on another processor, line_stand_in, looks whether
 * the line is late and then does its work. The mutex is held by whoever works; sleeping is outside it.
 *
 * Sources: linux/netfilter/nfnetlink_queue.h (messages), Steele, Lea, Flood 2014 (SplitMix64).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { READ_BATCH = 64, SLOT = 256, VERDICT_BATCH = 32, VERDICT_BYTES = 32 };
enum { EARLY_NS = 10000, BUSY_PER_S = 15000, LOAD_NS = 10000000 }; /* of delay_line.py */
enum { STAND_IN_NS = 500000, STAND_IN_BATCH = 8, LOOK_NS = 1000000, IDLE_NS = 1000000000, IDLE_LOOK_NS = 10000000 };
enum { UNTIL = 0, OTHER_READABLE = 1, UNKNOWN_LANE = 2, FAILED = 3 };            /* what line_run returns */
enum { A_PACKET_HDR = 1, A_TIMESTAMP = 4, A_OUTDEV = 6, A_PHYSOUTDEV = 8, A_HWADDR = 9 };
enum { STEP_NS = 20000, LINEAR = 1024, BUCKETS = LINEAR + 40, HISTOGRAM = 16 };  /* of shared_stats.py */
enum { DROP = 0, ACCEPT = 1 };
enum { PACKET = 3 << 8 }; /* of messages: NFQNL_MSG_PACKET of NFNL_SUBSYS_QUEUE */
#define HEAD UINT64_MAX

typedef struct { int64_t due; uint64_t key; } waiting_t;

typedef struct {
    uint32_t out;
    uint8_t mac[6];
    int64_t delay, jitter, last_due;
    double loss, reorder;
    uint64_t uniform, gauss; /* states of the two generators */
    waiting_t *ring;
    uint32_t head, count, room; /* room is a power of two */
} lane_t;

typedef struct { int64_t due; uint64_t order; uint32_t lane; uint64_t key; } entry_t;

typedef struct {
    int fd, other, heard; /* the stand-in writes to the last: the line's own thread wakes up */
    uint64_t *memory;
    lane_t *lanes;
    uint32_t lane_count, lane_room;
    int32_t *table; /* open addressing: lane number, or -1 */
    uint32_t table_mask;
    entry_t *heap;
    uint32_t heap_count, heap_room;
    uint64_t order;
    int64_t drained, rest, busy_early, last_read, read_at;
    int64_t early, load_since; /* the load is what came since then */
    uint64_t load_packets;     /* `packets` then */
    struct mmsghdr headers[READ_BATCH];
    struct iovec vectors[READ_BATCH];
    uint8_t slots[READ_BATCH * SLOT];
    int batch, next; /* messages read, and the first that is not dealt with */
    int64_t batch_now, batch_gap;
    uint8_t verdicts[VERDICT_BATCH * VERDICT_BYTES];
    int64_t dues[VERDICT_BATCH];
    int verdict_count, due_count;
    uint64_t packets, released, lost;
    uint32_t unknown_out;
    uint8_t unknown_mac[6];
    int error;
    pthread_mutex_t working;
    atomic_llong next_due, last_turn, last_packet; /* of the heap's first (LLONG_MAX: empty); when someone worked; … */
    atomic_bool ending, wanted; /* wanted: the line's own thread waits for the mutex */
    int most_verdicts;          /* in one system call, which also does what the released packets lead to */
    uint64_t stood_in; /* packets that the stand-in released */
} line_t;

static int64_t clock_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static double uniform(uint64_t *state)
{
    uint64_t z = (*state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-53;
}

/* Box and Muller 1958; the second of each pair is left out, so that a packet takes two draws, always. */
static double gauss(uint64_t *state)
{
    double a = 1.0 - uniform(state), b = uniform(state);
    return sqrt(-2.0 * log(a)) * cos(6.283185307179586 * b);
}

line_t *line_new(int fd, int other, uint64_t *memory)
{
    line_t *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->fd = fd;
    l->other = other;
    l->memory = memory;
    l->table_mask = 255;
    l->table = malloc((l->table_mask + 1) * sizeof *l->table);
    l->heard = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!l->table || l->heard < 0) {
        if (l->heard >= 0)
            close(l->heard);
        free(l->table);
        free(l);
        return NULL;
    }
    memset(l->table, 0xff, (l->table_mask + 1) * sizeof *l->table);
    for (int i = 0; i < READ_BATCH; i++) {
        l->vectors[i].iov_base = l->slots + i * SLOT;
        l->vectors[i].iov_len = SLOT;
        l->headers[i].msg_hdr.msg_iov = &l->vectors[i];
        l->headers[i].msg_hdr.msg_iovlen = 1;
    }
    l->drained = l->load_since = clock_ns(CLOCK_MONOTONIC);
    l->early = EARLY_NS;
    atomic_init(&l->next_due, LLONG_MAX);
    atomic_init(&l->last_turn, l->drained);
    atomic_init(&l->last_packet, l->drained);
    pthread_mutex_init(&l->working, NULL);
    return l;
}

void line_free(line_t *l)
{
    for (uint32_t i = 0; i < l->lane_count; i++)
        free(l->lanes[i].ring);
    free(l->lanes);
    free(l->table);
    free(l->heap);
    pthread_mutex_destroy(&l->working);
    close(l->heard);
    free(l);
}

static uint32_t hash(uint32_t out, const uint8_t *mac)
{
    uint64_t h = out * UINT64_C(0x9E3779B97F4A7C15);
    for (int i = 0; i < 6; i++)
        h = (h ^ mac[i]) * UINT64_C(0x100000001B3);
    return (uint32_t)(h >> 20);
}

static int32_t find(line_t *l, uint32_t out, const uint8_t *mac)
{
    for (uint32_t at = hash(out, mac) & l->table_mask;; at = (at + 1) & l->table_mask) {
        int32_t n = l->table[at];
        if (n < 0 || (l->lanes[n].out == out && !memcmp(l->lanes[n].mac, mac, 6)))
            return n;
    }
}

static void enter(line_t *l, uint32_t number)
{
    uint32_t at = hash(l->lanes[number].out, l->lanes[number].mac) & l->table_mask;
    while (l->table[at] >= 0)
        at = (at + 1) & l->table_mask;
    l->table[at] = (int32_t)number;
}

static void begin_work(line_t *l)
{
    atomic_store(&l->wanted, true);
    pthread_mutex_lock(&l->working);
    atomic_store(&l->wanted, false);
    l->most_verdicts = VERDICT_BATCH;
}

static void end_work(line_t *l)
{
    atomic_store(&l->next_due, l->heap_count ? l->heap[0].due : LLONG_MAX);
    atomic_store(&l->last_turn, clock_ns(CLOCK_MONOTONIC));
    pthread_mutex_unlock(&l->working);
}

static int add_lane(line_t *l, uint32_t out, const uint8_t *mac, uint64_t uniform_seed, uint64_t gauss_seed)
{
    if (l->lane_count == l->lane_room) {
        uint32_t room = l->lane_room ? 2 * l->lane_room : 64;
        lane_t *lanes = realloc(l->lanes, room * sizeof *lanes);
        if (!lanes)
            return -1;
        l->lanes = lanes;
        l->lane_room = room;
    }
    lane_t *lane = &l->lanes[l->lane_count];
    memset(lane, 0, sizeof *lane);
    lane->out = out;
    memcpy(lane->mac, mac, 6);
    lane->uniform = uniform_seed;
    lane->gauss = gauss_seed;
    l->lane_count++;
    if (2 * l->lane_count > l->table_mask) {
        uint32_t mask = 2 * l->table_mask + 1;
        int32_t *table = malloc((mask + (size_t)1) * sizeof *table);
        if (!table) {
            l->lane_count--;
            return -1;
        }
        free(l->table);
        l->table = table;
        l->table_mask = mask;
        memset(table, 0xff, (mask + (size_t)1) * sizeof *table);
        for (uint32_t i = 0; i < l->lane_count - 1; i++)
            enter(l, i);
    }
    enter(l, l->lane_count - 1);
    return (int)l->lane_count - 1;
}

/* A new lane's number, or -1 without memory. Its settings are all zero: call line_set. */
int line_add(line_t *l, uint32_t out, const uint8_t *mac, uint64_t uniform_seed, uint64_t gauss_seed)
{
    begin_work(l);
    int number = add_lane(l, out, mac, uniform_seed, gauss_seed);
    end_work(l);
    return number;
}

void line_set(line_t *l, int number, int64_t delay, int64_t jitter, double loss, double reorder)
{
    begin_work(l);
    lane_t *lane = &l->lanes[number];
    lane->delay = delay;
    lane->jitter = jitter;
    lane->loss = loss;
    lane->reorder = reorder;
    end_work(l);
}

/* Pace of delay_line.py: how long reading may rest while packets come, and how early a busy line releases. */
void line_set_pace(line_t *l, int64_t rest, int64_t busy_early)
{
    l->rest = rest;
    l->busy_early = busy_early;
}

/* When a packet is due, or -1 when it is lost; Lane.due of lanes.py. */
static int64_t due_of(lane_t *lane, int64_t arrived)
{
    if (lane->loss > 0 && uniform(&lane->uniform) < lane->loss)
        return -1;
    int64_t due = arrived + lane->delay;
    if (lane->jitter) {
        due += (int64_t)(gauss(&lane->gauss) * (double)lane->jitter);
        if (due < arrived)
            due = arrived;
        if (lane->reorder > 0 && uniform(&lane->uniform) < lane->reorder)
            return due;
    }
    if (due < lane->last_due)
        return lane->last_due;
    lane->last_due = due;
    return due;
}

/* For tests: the fate of a lane's next packet. */
int64_t line_due(line_t *l, int number, int64_t arrived) { return due_of(&l->lanes[number], arrived); }

static int before(const entry_t *a, const entry_t *b)
{
    return a->due < b->due || (a->due == b->due && a->order < b->order);
}

static int push(line_t *l, int64_t due, uint32_t lane, uint64_t key)
{
    if (l->heap_count == l->heap_room) {
        uint32_t room = l->heap_room ? 2 * l->heap_room : 256;
        entry_t *heap = realloc(l->heap, room * sizeof *heap);
        if (!heap)
            return 0;
        l->heap = heap;
        l->heap_room = room;
    }
    entry_t new = {due, l->order++, lane, key};
    uint32_t at = l->heap_count++;
    while (at && before(&new, &l->heap[(at - 1) / 2])) {
        l->heap[at] = l->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    l->heap[at] = new;
    return 1;
}

static entry_t pop(line_t *l)
{
    entry_t top = l->heap[0], last = l->heap[--l->heap_count];
    uint32_t at = 0, child;
    while ((child = 2 * at + 1) < l->heap_count) {
        if (child + 1 < l->heap_count && before(&l->heap[child + 1], &l->heap[child]))
            child++;
        if (!before(&l->heap[child], &last))
            break;
        l->heap[at] = l->heap[child];
        at = child;
    }
    l->heap[at] = last;
    return top;
}

static int append(lane_t *lane, int64_t due, uint64_t key)
{
    if (lane->count == lane->room) {
        uint32_t room = lane->room ? 2 * lane->room : 16;
        waiting_t *ring = malloc(room * sizeof *ring);
        if (!ring)
            return 0;
        for (uint32_t i = 0; i < lane->count; i++)
            ring[i] = lane->ring[(lane->head + i) & (lane->room - 1)];
        free(lane->ring);
        lane->ring = ring;
        lane->room = room;
        lane->head = 0;
    }
    waiting_t one = {due, key};
    lane->ring[(lane->head + lane->count++) & (lane->room - 1)] = one;
    return 1;
}

static void count_lag(line_t *l, int64_t lag)
{
    int64_t step = lag / STEP_NS;
    int64_t bucket = step > 0 ? step : 0;
    if (step >= LINEAR) {
        bucket = LINEAR - 1 + (64 - __builtin_clzll((uint64_t)(step / LINEAR)));
        if (bucket > BUCKETS - 1)
            bucket = BUCKETS - 1;
    }
    l->memory[HISTOGRAM + bucket]++;
}

static int flush(line_t *l)
{
    if (!l->verdict_count)
        return 1;
    size_t length = (size_t)l->verdict_count * VERDICT_BYTES;
    while (send(l->fd, l->verdicts, length, 0) < 0)
        if (errno != EINTR && errno != EAGAIN) {
            l->error = errno;
            return 0;
        }
    int64_t now = clock_ns(CLOCK_MONOTONIC); /* all are on their way by now: a lag is never understated */
    for (int i = 0; i < l->due_count; i++)
        count_lag(l, now - l->dues[i]);
    l->released += l->due_count;
    l->lost += l->verdict_count - l->due_count;
    l->verdict_count = l->due_count = 0;
    return 1;
}

static int verdict(line_t *l, uint64_t key, uint32_t what)
{
    struct {
        uint32_t length;
        uint16_t type, flags;
        uint32_t sequence, port;
        uint8_t family, version;
        uint16_t queue;
        uint16_t attr_length, attr_type;
        uint32_t verdict, id;
    } one = {VERDICT_BYTES, 3 << 8 | 1, 1, 0, 0, 0, 0, htons((uint16_t)(key & 0xff)), 12, 2, htonl(what),
             htonl((uint32_t)(key >> 8))};
    memcpy(l->verdicts + l->verdict_count * VERDICT_BYTES, &one, VERDICT_BYTES);
    l->verdict_count++;
    return l->verdict_count < l->most_verdicts || flush(l);
}

static int accept_packet(line_t *l, int64_t due, uint64_t key)
{
    l->dues[l->due_count++] = due;
    return verdict(l, key, ACCEPT);
}

/* Deal with what was read. UNTIL when done, UNKNOWN_LANE when line_add has to come first. */
static int take(line_t *l)
{
    for (; l->next < l->batch; l->next++) {
        const uint8_t *slot = l->slots + l->next * SLOT;
        uint32_t length, id = 0, out = 0, physical = 0;
        uint16_t type, queue;
        int64_t stamp = 0;
        const uint8_t *mac = (const uint8_t *)"\0\0\0\0\0\0";
        memcpy(&type, slot + 4, 2);
        if (type != PACKET) /* an error: of a verdict whose packet the kernel has given up meanwhile */
            continue;
        memcpy(&length, slot, 4);
        memcpy(&queue, slot + 18, 2);
        queue = ntohs(queue);
        if (length > l->headers[l->next].msg_len)
            length = l->headers[l->next].msg_len;
        if (length > SLOT)
            length = SLOT;
        for (uint32_t at = 20; at + 4 <= length;) {
            uint16_t size, kind;
            uint32_t word;
            memcpy(&size, slot + at, 2);
            memcpy(&kind, slot + at + 2, 2);
            if (size < 4 || at + size > length)
                break;
            const uint8_t *data = slot + at + 4;
            switch (kind & 0x3fff) {
            case A_PACKET_HDR:
                memcpy(&word, data, 4);
                id = ntohl(word);
                break;
            case A_OUTDEV:
                memcpy(&word, data, 4);
                out = ntohl(word);
                break;
            case A_PHYSOUTDEV:
                memcpy(&word, data, 4);
                physical = ntohl(word);
                break;
            case A_HWADDR:
                mac = data + 4;
                break;
            case A_TIMESTAMP: {
                uint64_t seconds, micros;
                memcpy(&seconds, data, 8);
                memcpy(&micros, data + 8, 8);
                stamp = (int64_t)be64toh(seconds) * 1000000000 + (int64_t)be64toh(micros) * 1000;
                break;
            }
            }
            at += (size + 3u) & ~3u;
        }
        if (physical)
            out = physical;
        int32_t number = find(l, out, mac);
        if (number < 0) {
            l->unknown_out = out;
            memcpy(l->unknown_mac, mac, 6);
            return UNKNOWN_LANE;
        }
        lane_t *lane = &l->lanes[number];
        int64_t arrived = stamp ? stamp - l->batch_gap : l->batch_now;
        if (arrived < l->drained) /* the clock was set; or the time is not of this queue's arrival */
            arrived = l->drained;
        if (arrived > l->batch_now)
            arrived = l->batch_now;
        int64_t due = due_of(lane, arrived);
        uint64_t key = (uint64_t)id << 8 | queue;
        l->packets++;
        int fine;
        if (due < 0)
            fine = verdict(l, key, DROP);
        else if (!lane->count)
            fine = append(lane, due, key) && push(l, due, (uint32_t)number, HEAD);
        else if (due >= lane->ring[(lane->head + lane->count - 1) & (lane->room - 1)].due)
            fine = append(lane, due, key);
        else /* it overtakes */
            fine = push(l, due, (uint32_t)number, key);
        if (!fine) {
            if (!l->error)
                l->error = ENOMEM;
            return FAILED;
        }
    }
    if (l->batch && l->batch < READ_BATCH)
        l->drained = l->batch_now;
    l->batch = l->next = 0;
    return UNTIL;
}

static int receive(line_t *l)
{
    l->batch_now = clock_ns(CLOCK_MONOTONIC);
    int count = recvmmsg(l->fd, l->headers, READ_BATCH, MSG_DONTWAIT, NULL);
    if (count < 0) {
        if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS)
            return UNTIL;
        l->error = errno;
        return FAILED;
    }
    atomic_store(&l->last_packet, l->batch_now);
    l->batch = count;
    l->next = 0;
    int64_t span = l->batch_now - l->load_since;
    if (span >= LOAD_NS) {
        bool busy = (double)(l->packets - l->load_packets) * 1e9 > (double)BUSY_PER_S * (double)span;
        l->early = busy ? l->busy_early : EARLY_NS;
        l->load_since = l->batch_now;
        l->load_packets = l->packets;
    }
    l->batch_gap = clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_MONOTONIC);
    return take(l);
}

/* The stand-in stops when the line's own thread wants to go on. */
static int release(line_t *l)
{
    int64_t now = clock_ns(CLOCK_MONOTONIC) + l->early;
    while (l->heap_count && l->heap[0].due <= now && !(l->most_verdicts == STAND_IN_BATCH && atomic_load(&l->wanted))) {
        entry_t top = pop(l);
        if (top.key != HEAD) {
            if (!accept_packet(l, top.due, top.key))
                return FAILED;
        } else {
            lane_t *lane = &l->lanes[top.lane];
            while (lane->count && lane->ring[lane->head].due <= now) {
                waiting_t one = lane->ring[lane->head];
                lane->head = (lane->head + 1) & (lane->room - 1);
                lane->count--;
                if (!accept_packet(l, one.due, one.key))
                    return FAILED;
            }
            if (lane->count && !push(l, lane->ring[lane->head].due, top.lane, HEAD)) {
                l->error = ENOMEM;
                return FAILED;
            }
        }
        now = clock_ns(CLOCK_MONOTONIC) + l->early;
    }
    return flush(l) ? UNTIL : FAILED;
}

/* One round of work, waits included; what line_run returns, or -1 to go on. */
static int turn(line_t *l, int64_t until)
{
    int code;
    if (l->error)
        return FAILED; /* the stand-in's */
    if (l->next < l->batch && (code = take(l)) != UNTIL) /* the rest of a batch that met an unknown lane */
        return code;
    if (release(l) == FAILED)
        return FAILED;
    int64_t now = clock_ns(CLOCK_MONOTONIC);
    if (now >= until)
        return UNTIL;
    int64_t wait = (l->heap_count && l->heap[0].due < until ? l->heap[0].due : until) - now;
    if (wait < 0)
        wait = 0;
    struct pollfd fds[3] = {{l->fd, POLLIN, 0}, {l->other, POLLIN, 0}, {l->heard, POLLIN, 0}};
    struct timespec none = {0, 0}, t = {wait / 1000000000, wait % 1000000000};
    uint64_t so_far = l->packets;
    int64_t rest = l->read_at - now;
    end_work(l);
    if (rest > 0) { /* packets keep coming: being woken by each would cost more than delaying it */
        struct timespec pause = {0, wait < rest ? wait : rest};
        nanosleep(&pause, NULL);
        if (wait < rest) {
            begin_work(l);
            return -1;
        }
        t = none;
    }
    int ready = ppoll(fds, 3, &t, NULL), error = errno;
    begin_work(l);
    if (ready < 0 && error != EINTR) {
        l->error = error;
        return FAILED;
    }
    uint64_t times;
    if (ready > 0 && fds[2].revents && read(l->heard, &times, sizeof times) < 0 && errno != EAGAIN) {
        l->error = errno;
        return FAILED;
    }
    if (ready > 0 && (fds[0].revents & POLLIN) && l->next == l->batch && (code = receive(l)) != UNTIL)
        return code;
    if (l->packets > so_far) {
        l->read_at = l->batch_now - l->last_read < 2 * l->rest ? clock_ns(CLOCK_MONOTONIC) + l->rest : 0;
        l->last_read = l->batch_now;
    }
    if (ready > 0 && fds[1].revents)
        return release(l) == FAILED ? FAILED : OTHER_READABLE;
    return -1;
}

/* Work until that time, or until the other descriptor can be read, or a lane has to be made first. */
int line_run(line_t *l, int64_t until)
{
    int code;
    begin_work(l);
    while ((code = turn(l, until)) < 0)
        ;
    end_work(l);
    return code;
}

static void wake(line_t *l)
{
    uint64_t one = 1;
    if (write(l->heard, &one, sizeof one) < 0 && errno != EAGAIN && !l->error)
        l->error = errno;
}

/* For a second thread, on another processor: do the line's work whenever it is late, until line_end. */
void line_stand_in(line_t *l)
{
    while (!atomic_load(&l->ending)) {
        int64_t now = clock_ns(CLOCK_MONOTONIC), due = atomic_load(&l->next_due);
        int64_t wait = now - atomic_load(&l->last_packet) > IDLE_NS ? IDLE_LOOK_NS : LOOK_NS;
        if (due != LLONG_MAX && due + STAND_IN_NS - now < wait)
            wait = due + STAND_IN_NS - now;
        if (wait < 0) /* it is at work */
            wait = STAND_IN_NS;
        struct timespec pause = {0, wait};
        nanosleep(&pause, NULL);
        now = clock_ns(CLOCK_MONOTONIC);
        due = atomic_load(&l->next_due);
        if ((due == LLONG_MAX || now < due + STAND_IN_NS) && now < atomic_load(&l->last_turn) + LOOK_NS)
            continue;
        if (pthread_mutex_trylock(&l->working))
            continue;
        l->most_verdicts = STAND_IN_BATCH;
        uint64_t so_far = l->released, packets = l->packets;
        if (!l->error && l->next == l->batch)
            receive(l);
        if (l->packets > packets || l->next < l->batch) /* the line's own thread knows of none of them, asleep or not */
            wake(l);
        if (!l->error)
            release(l);
        l->stood_in += l->released - so_far;
        end_work(l);
    }
}

void line_end(line_t *l) { atomic_store(&l->ending, true); }

uint64_t line_packets(const line_t *l) { return l->packets; }
uint64_t line_released(const line_t *l) { return l->released; }
uint64_t line_lost(const line_t *l) { return l->lost; }
uint64_t line_stood_in(const line_t *l) { return l->stood_in; }
uint32_t line_unknown_out(const line_t *l) { return l->unknown_out; }
const uint8_t *line_unknown_mac(const line_t *l) { return l->unknown_mac; }
int line_error(const line_t *l) { return l->error; }
