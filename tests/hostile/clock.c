/* A system clock that is set: preloaded, it adds the seconds in the file CLOCK_OFFSET to the time of day. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef int reading(clockid_t, struct timespec *);

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = ((reading *)dlsym(RTLD_NEXT, "clock_gettime"))(clock, now);
    const char *path = getenv("CLOCK_OFFSET");
    FILE *file = clock == CLOCK_REALTIME && path ? fopen(path, "r") : NULL;
    long seconds = 0;
    if (file) {
        if (fscanf(file, "%ld", &seconds) == 1)
            now->tv_sec += seconds;
        fclose(file);
    }
    return result;
}
