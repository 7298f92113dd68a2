/* process.c: of Linux's /proc. */
#include "base/process.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void read_text(const char *path, char text[4096])
{
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, 4095, f) : 0;
    if (f) fclose(f);
    text[n] = '\0';
}

/* Field 22 of stat: when the process started, in ticks since the machine did. */
double ll_process_age(void)
{
    char text[4096];
    unsigned long long ticks = 0;
    read_text("/proc/self/stat", text);
    const char *at = strrchr(text, ')'); /* behind the name, which may hold anything */
    for (int i = 2; at && i < 22; i++) at = strchr(at + 1, ' ');
    struct timespec t;
    if (!at || sscanf(at, "%llu", &ticks) != 1 || clock_gettime(CLOCK_BOOTTIME, &t)) return NAN;
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec -
           (double)ticks / (double)sysconf(_SC_CLK_TCK);
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
