/* Preloaded into a user-mode-linux that can't run on this processor as it is.
 *
 * Before Linux 6.10 or so, UML keeps 2.6 kB of extended registers for each process. Processors with AMX have 11 kB, and
 * their kernels refuse a PTRACE_SETREGSET that is shorter than that. Here such a call is filled up with zeros: the rest
 * holds AMX tiles, which a process must ask its kernel for, and UML has none to give.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

long ptrace(enum __ptrace_request request, ...)
{
    va_list args;
    va_start(args, request);
    pid_t pid = va_arg(args, pid_t);
    void *address = va_arg(args, void *), *data = va_arg(args, void *);
    va_end(args);

    if (request == PTRACE_SETREGSET && (long)address == NT_X86_XSTATE) {
        static _Thread_local char registers[1 << 16] __attribute__((aligned(64)));
        static _Thread_local size_t size;
        struct iovec *given = data, all = {registers, size};
        if (!size) {
            all.iov_len = sizeof registers;
            if (syscall(SYS_ptrace, (long)PTRACE_GETREGSET, (long)pid, address, &all) < 0)
                return -1;
            size = all.iov_len;
            memset(registers, 0, sizeof registers);
        }
        memcpy(registers, given->iov_base, given->iov_len < size ? given->iov_len : size);
        return syscall(SYS_ptrace, (long)request, (long)pid, address, &all);
    }
    if (request >= PTRACE_PEEKTEXT && request <= PTRACE_PEEKUSER) { /* the system call itself stores the word */
        long word;
        if (syscall(SYS_ptrace, (long)request, (long)pid, address, &word) < 0)
            return -1;
        errno = 0;
        return word;
    }
    return syscall(SYS_ptrace, (long)request, (long)pid, address, data);
}
