/* A directory server that never answers: preloaded, it blocks lookups of every uid but root's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pwd.h>
#include <unistd.h>

typedef int lookup(uid_t, struct passwd *, char *, size_t, struct passwd **);

int getpwuid_r(uid_t uid, struct passwd *entry, char *buffer, size_t size, struct passwd **result)
{
    while (uid != 0)
        pause();
    return ((lookup *)dlsym(RTLD_NEXT, "getpwuid_r"))(uid, entry, buffer, size, result);
}
