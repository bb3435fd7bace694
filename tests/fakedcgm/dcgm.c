/* A fake libdcgm that answers from a scenario file, read anew at each call.
 *
 *     version 4.2.3                                what the engine calls itself
 *     engine 10.0.0.1:5555                         an address at which an engine answers; unix:/path for a socket
 *     gpu 0 GPU-a                                  DCGM's number of a GPU, and its uuid
 *     pid 42 gpu=0 energy_mj=200000 sm=60 ...      what dcgmGetPidInfo says; `blank` is a value too, -1 is not special
 *     error dcgmGetPidInfo -12                     a call that fails
 *     hang dcgmGetPidInfo                          a call that does not return while this line is there
 *     refuse 0x02004528                            a version word that is not understood
 *     lost_after 3                                 a connection breaks after so many dcgmGetPidInfo
 *
 * Calls are written to the file named by FAKE_DCGM_CALLS, a line each. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define BLANK_64 0x7ffffffffffffff0LL
#define BLANK_32 0x7ffffff0
#define HANDLE ((uintptr_t)0x7f5500001234) /* more than 32 bits, as a pointer has */
#define ALL_GPUS 0x7fffffff
#define MAX_GPUS 32

enum { OK = 0, BADPARAM = -1, UNINITIALIZED = -10, VER_MISMATCH = -12, NO_DATA = -14, NOT_WATCHED = -16,
       CONNECTION_NOT_VALID = -21 };

typedef struct { int64_t min, max, average; } Summary64;
typedef struct { int32_t min, max, average; } Summary32;
typedef struct {
    uint32_t gpu_id;
    int64_t energy;
    Summary64 pcie_rx, pcie_tx;
    int64_t replays, start, end;
    struct { uint32_t pid; double sm, memory; } process;
    Summary32 sm, memory;
    uint32_t single_bit, double_bit;
    Summary32 memory_clock, sm_clock;
    int32_t xids;
    int64_t xid_times[10];
    int32_t other_compute;
    uint32_t other_compute_pids[16];
    int32_t other_graphics;
    uint32_t other_graphics_pids[16];
    int64_t max_memory, violations[6];
    uint32_t health, incidents;
    struct { uint32_t system, health; } systems[10];
} Single;
typedef struct { uint32_t version, pid, unused; int32_t gpus_count; Single summary, gpus[MAX_GPUS]; } PidInfo;
typedef struct { uint32_t version; int32_t mode; uintptr_t handle; const char *log; int32_t severity;
                 uint32_t deny_count, deny[10]; } Embedded;
typedef struct { uint32_t version, persist, timeout_ms, is_unix; } Connect;
typedef struct { uint32_t version; char text[512]; } Version;
typedef struct { uint32_t kind, number; } Entity;
typedef struct { uint32_t version, kind, number; uint16_t field, type; int32_t status; uint32_t unused; int64_t time;
                 union { int64_t i64; double dbl; char str[256]; char blob[4096]; } value; } Value;

#define AT(type, field, offset) _Static_assert(offsetof(type, field) == offset, #type "." #field)
#define SIZE(type, size) _Static_assert(sizeof(type) == size, #type)
SIZE(Single, 536); SIZE(PidInfo, 17704); SIZE(Embedded, 72); SIZE(Connect, 16); SIZE(Version, 516); SIZE(Value, 4128);
SIZE(Entity, 8);
AT(Single, energy, 8); AT(Single, pcie_rx, 16); AT(Single, pcie_tx, 40); AT(Single, replays, 64); AT(Single, start, 72);
AT(Single, end, 80); AT(Single, process, 88); AT(Single, sm, 112); AT(Single, memory, 124); AT(Single, single_bit, 136);
AT(Single, memory_clock, 144); AT(Single, sm_clock, 156); AT(Single, xids, 168); AT(Single, xid_times, 176);
AT(Single, other_compute, 256); AT(Single, other_compute_pids, 260); AT(Single, other_graphics, 324);
AT(Single, max_memory, 392); AT(Single, violations, 400); AT(Single, health, 448); AT(Single, systems, 456);
AT(PidInfo, pid, 4); AT(PidInfo, gpus_count, 12); AT(PidInfo, summary, 16); AT(PidInfo, gpus, 552);
AT(Embedded, handle, 8); AT(Embedded, log, 16); AT(Embedded, severity, 24);
AT(Value, status, 16); AT(Value, time, 24); AT(Value, value, 32);

static int initialised, connected, watched, answered;

/* The next line of the scenario that begins with this word, without it; NULL at the end, where the file is closed. */
static char *next(FILE *file, const char *word, char line[1024]) {
    size_t length = strlen(word);
    while (fgets(line, 1024, file)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, word, length) && line[length] == ' ') return line + length + 1;
    }
    fclose(file);
    return NULL;
}

static FILE *scenario(void) {
    const char *path = getenv("FAKE_DCGM_SCENARIO");
    FILE *file = path ? fopen(path, "r") : NULL;
    return file ? file : fopen("/dev/null", "r");
}

static int has(const char *word, const char *rest) {
    char line[1024], *found;
    FILE *file = scenario();
    while ((found = next(file, word, line)))
        if (!strcmp(found, rest)) return fclose(file), 1;
    return 0;
}

static int refused(uint32_t version) {
    char line[1024], *found;
    FILE *file = scenario();
    while ((found = next(file, "refuse", line)))
        if (strtoul(found, NULL, 0) == version) return fclose(file), 1;
    return 0;
}

/* What every call begins with: it is noted, it may hang, it may fail. */
static int begin(const char *name, const char *arguments) {
    const char *path = getenv("FAKE_DCGM_CALLS");
    FILE *calls = path ? fopen(path, "a") : NULL;
    if (calls) fprintf(calls, *arguments ? "%s %s\n" : "%s\n", name, arguments), fclose(calls);
    while (has("hang", name)) usleep(5000);
    char line[1024], *found, wanted[64];
    int code;
    FILE *file = scenario();
    while ((found = next(file, "error", line)))
        if (sscanf(found, "%63s %d", wanted, &code) == 2 && !strcmp(wanted, name)) return fclose(file), code;
    return OK;
}
#define BEGIN(...) do { char shown[512]; snprintf(shown, sizeof shown, __VA_ARGS__); \
                        int code = begin(__func__, shown); if (code) return code; } while (0)
#define NEEDS(handle) do { if (!connected || (handle) != HANDLE) return CONNECTION_NOT_VALID; } while (0)

API int dcgmInit(void) { BEGIN("%s", ""); initialised = 1; return OK; }
API int dcgmShutdown(void) { BEGIN("%s", ""); initialised = connected = watched = 0; return OK; }

static int open_engine(void) { connected = 1; watched = answered = 0; return OK; }

API int dcgmStartEmbedded_v2(Embedded *parameters) {
    BEGIN("mode=%d", parameters->mode);
    if (!initialised) return UNINITIALIZED;
    if (parameters->version != 0x01000048 || refused(parameters->version)) return VER_MISMATCH;
    parameters->handle = HANDLE;
    return open_engine();
}

API int dcgmStopEmbedded(uintptr_t handle) { BEGIN("%s", ""); NEEDS(handle); connected = 0; return OK; }

API int dcgmConnect_v2(const char *address, Connect *parameters, uintptr_t *handle) {
    char full[256];
    snprintf(full, sizeof full, "%s%s", parameters->is_unix ? "unix:" : "", address);
    BEGIN("%s", full);
    if (!initialised) return UNINITIALIZED;
    if (parameters->version != 0x02000010 || refused(parameters->version)) return VER_MISMATCH;
    if (!has("engine", full)) return CONNECTION_NOT_VALID;
    *handle = HANDLE;
    return open_engine();
}

API int dcgmDisconnect(uintptr_t handle) { BEGIN("%s", ""); NEEDS(handle); connected = 0; return OK; }

API int dcgmHostengineVersionInfo(uintptr_t handle, Version *info) {
    BEGIN("%s", "");
    NEEDS(handle);
    if (info->version != 0x02000204) return VER_MISMATCH;
    char line[1024], *version;
    FILE *file = scenario();
    if ((version = next(file, "version", line))) fclose(file);
    else version = MAJOR ".0.0";
    snprintf(info->text, sizeof info->text, "version:%s;arch:x86_64;builddate:2024-01-01 00:00:00", version);
    return OK;
}

API int dcgmEntitiesGetLatestValues(uintptr_t handle, Entity entities[], unsigned count, unsigned short fields[],
                                    unsigned field_count, unsigned flags, Value values[]) {
    BEGIN("kind=%u number=%u field=%u flags=%u", entities->kind, entities->number, *fields, flags);
    NEEDS(handle);
    if (count != 1 || field_count != 1 || entities->kind != 1 || *fields != 54 || flags != 1) return BADPARAM;
    memset(values, 0, sizeof *values);
    values->status = NO_DATA;
    char line[1024], *found, uuid[256];
    unsigned number;
    FILE *file = scenario();
    while ((found = next(file, "gpu", line)))
        if (sscanf(found, "%u %255s", &number, uuid) == 2 && number == entities->number) {
            values->status = OK;
            memcpy(values->value.str, uuid, sizeof uuid);
        }
    return OK;
}

API int dcgmWatchPidFields(uintptr_t handle, uintptr_t group, long long period_us, double keep_s, int keep_samples) {
    BEGIN("period_us=%lld keep_s=%g keep_samples=%d", period_us, keep_s, keep_samples);
    NEEDS(handle);
    if (group != ALL_GPUS || period_us <= 0) return BADPARAM;
    watched = 1;
    return OK;
}

API int dcgmUpdateAllFields(uintptr_t handle, int wait) { BEGIN("wait=%d", wait); NEEDS(handle); return OK; }

static int64_t number(const char *line, const char *key, int64_t fallback, int64_t blank) {
    char wanted[64];
    snprintf(wanted, sizeof wanted, " %s=", key);
    const char *found = strstr(line, wanted);
    if (!found) return fallback;
    found += strlen(wanted);
    return strncmp(found, "blank", 5) ? strtoll(found, NULL, 0) : blank + (found[5] == '+' ? atoi(found + 6) : 0);
}

static void fill(Single *gpu, const char *line) {
    gpu->gpu_id = (uint32_t)number(line, "gpu", 0, 0);
    gpu->energy = number(line, "energy_mj", BLANK_64, BLANK_64);
    gpu->start = number(line, "start_us", 0, BLANK_64);
    gpu->end = number(line, "end_us", 0, BLANK_64);
    gpu->sm.average = (int32_t)number(line, "sm", BLANK_32, BLANK_32);
    gpu->memory.average = (int32_t)number(line, "mem", BLANK_32, BLANK_32);
    gpu->other_compute = (int32_t)number(line, "others", 0, BLANK_32);
    gpu->max_memory = number(line, "max_memory", BLANK_64, BLANK_64);
    /* What must never be taken for one of the numbers above. */
    gpu->pcie_rx = gpu->pcie_tx = (Summary64){7, 7, 7};
    gpu->sm.min = gpu->sm.max = gpu->memory.min = gpu->memory.max = 7;
    gpu->process.sm = gpu->process.memory = 7;
}

API int dcgmGetPidInfo(uintptr_t handle, uintptr_t group, PidInfo *info) {
    BEGIN("pid=%u", info->pid);
    NEEDS(handle);
    char line[1024], *found;
    FILE *file = scenario();
    while ((found = next(file, "lost_after", line)))
        if (answered >= atoi(found)) return fclose(file), connected = 0, CONNECTION_NOT_VALID;
    answered++;
    if (info->version != 0x02004528 || refused(info->version)) return VER_MISMATCH;
    if (group != ALL_GPUS) return BADPARAM;
    if (!watched) return NOT_WATCHED;
    info->gpus_count = 0;
    memset(info->gpus, 0, sizeof info->gpus);
    file = scenario();
    while ((found = next(file, "pid", line)))
        if (strtoul(found, NULL, 10) == info->pid && info->gpus_count < MAX_GPUS)
            fill(&info->gpus[info->gpus_count++], found);
    return info->gpus_count ? OK : NO_DATA;
}

API const char *errorString(int code) {
    switch (code) {
    case VER_MISMATCH: return "Version Mismatch";
    case NO_DATA: return "No data is available";
    case NOT_WATCHED: return "Field is not being updated";
    case CONNECTION_NOT_VALID: return "The connection to the host engine is not valid any longer";
    case -29: return "This operation cannot be performed when the host engine is running as non-root";
    default: return NULL;
    }
}
