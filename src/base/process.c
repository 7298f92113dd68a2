/* process.c: of Linux's /proc. */
#include "base/process.h"

#include "base/now.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static void read_text(const char *path, char text[4096])
{
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, 4095, f) : 0;
    if (f) fclose(f);
    text[n] = '\0';
}

/* Of stat: field 3, and 22: when the process started, in ticks since the machine did; 0: not known.
 */
static unsigned long long read_stat(const char *path, char *state)
{
    char text[4096];
    unsigned long long ticks = 0;
    read_text(path, text);
    const char *at = strrchr(text, ')'); /* behind the name, which may hold anything */
    *state = at && at[1] ? at[2] : '\0';
    for (int i = 2; at && i < 22; i++) at = strchr(at + 1, ' ');
    return at && sscanf(at, "%llu", &ticks) == 1 ? ticks : 0;
}

double ll_process_age(void)
{
    char state;
    unsigned long long ticks = read_stat("/proc/self/stat", &state);
    if (!ticks) return NAN;
    return ll_clock(CLOCK_BOOTTIME) - (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

ll_core_time ll_core_time_now(void)
{
    char text[4096];
    unsigned long long user, nice, system, idle, io, irq, soft, steal;
    ll_core_time now = {.all = NAN, .own = ll_clock(CLOCK_PROCESS_CPUTIME_ID), .when = ll_now()};
    read_text("/proc/stat", text);
    if (sscanf(text, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &user, &nice, &system, &idle,
               &io, &irq, &soft, &steal) == 8)
        now.all =
            (double)(user + nice + system + irq + soft + steal) / (double)sysconf(_SC_CLK_TCK);
    return now;
}

double ll_others_share(double worked_on, double threads)
{
    double cores = (double)sysconf(_SC_NPROCESSORS_ONLN), ours = fmin(cores, threads);
    double share = (worked_on - (cores - ours)) / ours;
    return isnan(share) ? NAN : fmin(1, fmax(0, share));
}

static _Atomic double stopped;

static void on_stop(int number, siginfo_t *info, void *) /* may call very little */
{
    int kept = errno;
    double began = ll_now();
    if (number == SIGTSTP) raise(SIGSTOP); /* until SIGCONT */
    if (number == SIGTSTP) stopped = stopped + (ll_now() - began);
    if (number == SIGUSR2 && info->si_code == SI_QUEUE)
        stopped = stopped + 1e-3 * info->si_value.sival_int;
    errno = kept;
}

void ll_process_count_stops(void)
{
    struct sigaction mine = {.sa_sigaction = on_stop, .sa_flags = SA_RESTART | SA_SIGINFO}, now;
    for (int i = 0; i < 2; i++) {
        int number = i ? SIGUSR2 : SIGTSTP;
        if (sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            sigaction(number, &mine, NULL);
    }
}

double ll_process_stopped(void)
{
    return stopped;
}

ll_process ll_process_self(void)
{
    char state;
    struct stat st;
    unsigned long long ticks = read_stat("/proc/self/stat", &state);
    if (!ticks || stat("/proc/self/ns/pid", &st)) return (ll_process){0};
    return (ll_process){getpid(), ticks, (uint64_t)st.st_ino};
}

char ll_process_state(const ll_process *p)
{
    char path[64], state;
    struct stat st;
    if (!p->pid || stat("/proc/self/ns/pid", &st) || st.st_ino != p->space) return '\0';
    snprintf(path, sizeof path, "/proc/%ld/stat", p->pid);
    return read_stat(path, &state) == p->ticks ? state : '\0';
}

static size_t of_status(const char *field)
{
    char text[4096];
    unsigned long long kib = 0;
    read_text("/proc/self/status", text);
    const char *at = strstr(text, field);
    return at && sscanf(at + strlen(field), "%llu", &kib) == 1 ? (size_t)kib << 10 : 0;
}

size_t ll_process_bytes(void)
{
    return of_status("\nVmRSS:");
}

size_t ll_process_peak(void)
{
    return of_status("\nVmHWM:");
}

size_t ll_process_code(void)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    char line[4096], is[4096] = "", mode[8], path[4096];
    size_t sum = 0, bytes = 0; /* of the file whose ranges, one behind another, are looked at */
    unsigned long long kib;
    bool runs = false;
    while (f && fgets(line, sizeof line, f)) {
        path[0] = '\0';
        if (sscanf(line, "Rss: %llu kB", &kib) == 1) bytes += (size_t)kib << 10;
        if (sscanf(line, "%*x-%*x %7s %*s %*s %*s %4095[^\n]", mode, path) < 1) continue;
        if (strcmp(path, is)) {
            if (runs) sum += bytes;
            bytes = 0;
            runs = false;
            strcpy(is, path);
        }
        runs |= *path == '/' && strchr(mode, 'x');
    }
    if (f) fclose(f);
    return sum;
}
