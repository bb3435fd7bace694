/* A fake NVIDIA driver: the symbols of libnvidia-ml.so.1, answered from a scenario file.
 *
 * Reading order: scenario.h (what the file says), 1 what every call goes through (errors, latency,
 * hangs, counting), 2 the NVML functions by topic, 3 what no test needs, answered NOT_SUPPORTED. */
#include "scenario.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---------------------------------------------------------------- 1. calls */

static atomic_int lied[MAX_GPUS][2];
static atomic_ullong power_period[MAX_GPUS];
typedef struct Counter {
    const char *name;
    atomic_int listed;
    atomic_ullong calls, ns;
    struct Counter *next;
} Counter;

typedef struct {
    Counter *counter;
    Scenario *s;
    const Device *d; /* NULL for a call on no device */
    int code;
    u64 began_ns;
} Call;

static Counter *_Atomic counters;
static atomic_ullong written_ns;

/* Handles are addresses in this table, not in a scenario: they outlive every reload. */
static char handles[MAX_GPUS][1 + MAX_MIGS];

static Handle handle_of(int gpu, int mig) { return &handles[gpu][1 + mig]; } /* mig -1: the GPU itself */

static const Device *device_of(const Scenario *s, Handle handle) {
    uintptr_t at = (uintptr_t)handle - (uintptr_t)handles;
    if (at >= sizeof handles) return NULL;
    const Device *gpu = &s->gpus[at / (1 + MAX_MIGS)];
    int mig = (int)(at % (1 + MAX_MIGS)) - 1;
    if (!gpu->present || mig >= gpu->mig_count) return NULL;
    return mig < 0 ? gpu : &gpu->migs[mig];
}

/* Measured on an H200 with driver 580.159.04, in microseconds; whatever is not named takes 50. */
static const struct { const char *function; long us; } H200_US[] = {
    {"nvmlDeviceGetTotalEnergyConsumption", 4800}, {"nvmlDeviceGetProcessUtilization", 2700},
    {"nvmlDeviceGetProcessesUtilizationInfo", 2700}, {"nvmlDeviceGetUtilizationRates", 1900},
    {"nvmlDeviceGetPcieThroughput", 21000}, {"nvmlDeviceGetPcieReplayCounter", 500}, {"nvmlDeviceGetSamples", 2700},
    {"nvmlDeviceGetGridLicensableFeatures_v4", 180},
    {"nvmlGpmSampleGet", 230}, {"nvmlGpmMigSampleGet", 230},
    {"nvmlDeviceGetComputeRunningProcesses*", 160}, {"nvmlDeviceGetGraphicsRunningProcesses*", 160},
    {"nvmlDeviceGetMPSComputeRunningProcesses*", 160}, {"nvmlDeviceGetRunningProcessDetailList", 160},
};
enum { H200_OTHER_US = 50, H200_POWER_US = 3600 };

static int name_matches(const char *pattern, const char *name) {
    size_t n = strlen(pattern);
    return n && pattern[n - 1] == '*' ? !strncmp(pattern, name, n - 1) : !strcmp(pattern, name);
}

static long h200_latency_us(const Call *c) {
    if (c->d && !strcmp(c->counter->name, "nvmlDeviceGetPowerUsage")) {
        u64 period = monotonic_ns() / 100000000u;
        return atomic_exchange(&power_period[c->d->gpu], period) == period ? 0 : H200_POWER_US;
    }
    for (size_t i = 0; i < sizeof H200_US / sizeof *H200_US; i++)
        if (name_matches(H200_US[i].function, c->counter->name)) return H200_US[i].us;
    return H200_OTHER_US;
}

/* The first rule of this effect that speaks of this call; one with a count is used up by it. */
static Rule *find_rule(const Call *c, Effect effect) {
    for (int i = 0; i < c->s->rule_count; i++) {
        Rule *r = &c->s->rules[i];
        if (r->effect != effect || !name_matches(r->function, c->counter->name)) continue;
        if (r->gpu >= 0 && (!c->d || c->d->gpu != r->gpu)) continue;
        long left = r->left;
        while (left > 0 && !atomic_compare_exchange_weak(&r->left, &left, left - 1)) {}
        if (left) return r;
    }
    return NULL;
}

static atomic_int samples_in_use; /* of GPM: allocated and not freed */

static void write_counters(void) {
    const char *path = getenv("FAKE_NVML_CALLS");
    if (!path) return;
    char temporary[4096];
    snprintf(temporary, sizeof temporary, "%s.%d.%p", path, (int)getpid(), (void *)&temporary);
    FILE *f = fopen(temporary, "w");
    if (!f) return;
    for (Counter *c = counters; c; c = c->next)
        fprintf(f, "%s %llu %llu\n", c->name, (unsigned long long)c->calls, (unsigned long long)c->ns);
    fprintf(f, "samples_in_use %d 0\n", samples_in_use);
    if (fclose(f) || rename(temporary, path)) unlink(temporary);
}

static Call enter(Counter *counter, int has_device, Handle handle) {
    Call c = {.counter = counter, .began_ns = monotonic_ns()};
    if (!counter->listed && !atomic_exchange(&counter->listed, 1)) {
        counter->next = counters;
        while (!atomic_compare_exchange_weak(&counters, &counter->next, counter)) {}
    }
    c.s = acquire();
    c.d = has_device ? device_of(c.s, handle) : NULL;
    while (find_rule(&c, HANG)) { /* until a scenario without the line */
        release(c.s);
        sleep_us(10000);
        c.s = acquire();
        c.d = has_device ? device_of(c.s, handle) : NULL;
    }
    Rule *slow = find_rule(&c, LATENCY), *error;
    long us = slow ? slow->us : c.s->h200_latency ? h200_latency_us(&c) : 0;
    if (us > 0) sleep_us(us);
    if (find_rule(&c, MISSING)) c.code = FUNCTION_NOT_FOUND;
    else if (!initialised) c.code = UNINITIALIZED;
    else if ((error = find_rule(&c, ERROR))) c.code = error->code;
    else if (has_device && !c.d) c.code = INVALID_ARGUMENT;
    else if (c.d && (c.d->lost || (c.d->parent && c.d->parent->lost))) c.code = GPU_IS_LOST;
    return c;
}

static void leave(Call *c) {
    u64 now = monotonic_ns();
    unsigned long long last = written_ns;
    c->counter->calls++;
    c->counter->ns += now - c->began_ns;
    release(c->s);
    if (now - last > 1000000000u && atomic_compare_exchange_strong(&written_ns, &last, now)) write_counters();
}

#define EXPORT __attribute__((visibility("default")))
#define BEGIN(has_device, handle) \
    static Counter counter_ = {.name = __func__}; \
    __attribute__((cleanup(leave))) Call call = enter(&counter_, has_device, handle)
#define SYSTEM_CALL BEGIN(0, NULL); if (call.code) return call.code
#define ANY_CALL(handle) BEGIN(1, handle); if (call.code) return call.code
/* Most calls know nothing of MIG devices. */
#define GPU_CALL(handle) ANY_CALL(handle); if (call.d->parent) return NOT_SUPPORTED

static int mig_on(const Call *c) {
    u64 on;
    return !number(c->s, c->d, K_mig, &on) && on;
}

#define GETTER(function, key) \
    EXPORT int function(Handle h, u32 *out) { GPU_CALL(h); return number32(call.s, call.d, K_##key, out); }
#define TEXT_GETTER(function, key) \
    EXPORT int function(Handle h, char *out, u32 size) { GPU_CALL(h); return text(call.d, K_##key, out, size); }

/* ---------------------------------------------------------------- 2a. library and system */

static int init(Call *c) {
    if (c->code && c->code != UNINITIALIZED) return c->code;
    if (c->s->unloaded) return DRIVER_NOT_LOADED;
    Rule *error = c->code ? find_rule(c, ERROR) : NULL;
    if (error) return error->code;
    if (atomic_fetch_add(&initialised, 1) == 0)
        for (int g = 0; g < MAX_GPUS; g++) lied[g][0] = lied[g][1] = 0;
    return OK;
}
EXPORT int nvmlInit(void) { BEGIN(0, NULL); return init(&call); }
EXPORT int nvmlInit_v2(void) { BEGIN(0, NULL); return init(&call); }
EXPORT int nvmlInitWithFlags(u32 flags) { (void)flags; BEGIN(0, NULL); return init(&call); }
static atomic_int event_sets;
EXPORT int nvmlShutdown(void) {
    SYSTEM_CALL;
    if (initialised == 1 && event_sets) { /* NVIDIA's library crashes, here or when the set is freed */
        fputs("nvmlShutdown: an event set is still in use\n", stderr);
        abort();
    }
    initialised--;
    write_counters();
    return OK;
}

EXPORT const char *nvmlErrorString(int code) {
    static const char *const names[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power",
        "Driver Not Loaded", "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found",
        "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "The operating system has blocked the request", "Driver/library version mismatch", "In use by another client",
        "Insufficient Memory", "No data", "vGPU with ECC not supported", "Insufficient resources",
        "Frequency not supported", "Argument version mismatch", "Deprecated", "Not ready", "GPU not found",
        "Invalid state", "Reset type not supported",
    };
    return code >= 0 && code < (int)(sizeof names / sizeof *names) ? names[code] : "Unknown Error";
}

EXPORT int nvmlSystemGetDriverVersion(char *out, u32 size) { SYSTEM_CALL; return copy(out, size, call.s->version); }
EXPORT int nvmlSystemGetNVMLVersion(char *out, u32 size) {
    SYSTEM_CALL;
    return copy(out, size, call.s->nvml_version);
}
EXPORT int nvmlSystemGetCudaDriverVersion(int *out) { SYSTEM_CALL; return *out = atoi(call.s->cuda), OK; }
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *out) { SYSTEM_CALL; return *out = atoi(call.s->cuda), OK; }
EXPORT int nvmlSystemGetProcessName(u32 pid, char *out, u32 size) {
    SYSTEM_CALL;
    for (int i = 0; i < call.s->process_count; i++)
        if (call.s->processes[i].pid == pid && call.s->processes[i].name)
            return copy(out, size, call.s->processes[i].name);
    char path[32], line[1024] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *f = fopen(path, "r");
    if (!f) return NOT_FOUND;
    size_t n = fread(line, 1, sizeof line - 1, f); /* up to the first NUL: argv[0], as the real one */
    fclose(f);
    return n ? copy(out, size, line) : NOT_FOUND;
}
EXPORT int nvmlUnitGetCount(u32 *out) { SYSTEM_CALL; return *out = 0, OK; }
EXPORT int nvmlGetExcludedDeviceCount(u32 *out) { SYSTEM_CALL; return *out = 0, OK; }

/* ---------------------------------------------------------------- 2b. finding devices */

EXPORT int nvmlDeviceGetCount(u32 *out) { SYSTEM_CALL; return *out = (u32)call.s->gpu_count, OK; }
EXPORT int nvmlDeviceGetCount_v2(u32 *out) { SYSTEM_CALL; return *out = (u32)call.s->gpu_count, OK; }

static int by_index(Call *c, u32 index, Handle *out) {
    if (index >= (u32)c->s->gpu_count || !c->s->gpus[index].present) return INVALID_ARGUMENT;
    *out = handle_of((int)index, -1);
    c->d = &c->s->gpus[index];
    Rule *error = find_rule(c, ERROR); /* a rule for one GPU could not match before it was known */
    return error ? error->code : c->d->lost ? GPU_IS_LOST : OK;
}
EXPORT int nvmlDeviceGetHandleByIndex(u32 index, Handle *out) { SYSTEM_CALL; return by_index(&call, index, out); }
EXPORT int nvmlDeviceGetHandleByIndex_v2(u32 index, Handle *out) { SYSTEM_CALL; return by_index(&call, index, out); }

static int by_uuid(Call *c, const char *uuid, Handle *out) {
    char have[96];
    for (int g = 0; g < c->s->gpu_count; g++) {
        const Device *gpu = &c->s->gpus[g];
        if (!gpu->present) continue;
        if (!text(gpu, K_uuid, have, sizeof have) && !strcmp(have, uuid)) return by_index(c, (u32)g, out);
        for (int m = 0; m < gpu->mig_count; m++)
            if (!text(&gpu->migs[m], K_uuid, have, sizeof have) && !strcmp(have, uuid))
                return *out = handle_of(g, m), OK;
    }
    return NOT_FOUND;
}
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, Handle *out) { SYSTEM_CALL; return by_uuid(&call, uuid, out); }
typedef struct { u32 version, type; char uuid[41]; } UuidRequest;
EXPORT int nvmlDeviceGetHandleByUUIDV(const UuidRequest *in, Handle *out) {
    SYSTEM_CALL;
    return in->type == 1 ? by_uuid(&call, in->uuid, out) : NOT_SUPPORTED;
}

typedef struct { u32 domain, bus, device, function; } Bus;
static int bus_of(const char *id, Bus *bus) {
    return sscanf(id, "%x:%x:%x.%x", &bus->domain, &bus->bus, &bus->device, &bus->function) < 3;
}
static int by_bus(Call *c, const char *id, Handle *out) {
    char have[64];
    Bus wanted = {0}, bus = {0};
    if (bus_of(id, &wanted)) return INVALID_ARGUMENT;
    for (int g = 0; g < c->s->gpu_count; g++)
        if (c->s->gpus[g].present && !text(&c->s->gpus[g], K_bus, have, sizeof have) && !bus_of(have, &bus) &&
            bus.domain == wanted.domain && bus.bus == wanted.bus && bus.device == wanted.device)
            return by_index(c, (u32)g, out);
    return NOT_FOUND;
}
EXPORT int nvmlDeviceGetHandleByPciBusId(const char *id, Handle *out) { SYSTEM_CALL; return by_bus(&call, id, out); }
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, Handle *out) {
    SYSTEM_CALL;
    return by_bus(&call, id, out);
}
EXPORT int nvmlDeviceGetHandleBySerial(const char *serial, Handle *out) {
    SYSTEM_CALL;
    char have[64];
    for (int g = 0; g < call.s->gpu_count; g++)
        if (call.s->gpus[g].present && !text(&call.s->gpus[g], K_serial, have, sizeof have) && !strcmp(have, serial))
            return by_index(&call, (u32)g, out);
    return NOT_FOUND;
}

/* ---------------------------------------------------------------- 2c. identity */

EXPORT int nvmlDeviceGetIndex(Handle h, u32 *out) {
    ANY_CALL(h);
    *out = call.d->parent ? (u32)(call.d - call.d->parent->migs) : (u32)call.d->gpu;
    return OK;
}
EXPORT int nvmlDeviceGetUUID(Handle h, char *out, u32 size) { ANY_CALL(h); return text(call.d, K_uuid, out, size); }
EXPORT int nvmlDeviceGetName(Handle h, char *out, u32 size) { ANY_CALL(h); return text(call.d, K_name, out, size); }
TEXT_GETTER(nvmlDeviceGetSerial, serial)
TEXT_GETTER(nvmlDeviceGetBoardPartNumber, part)
TEXT_GETTER(nvmlDeviceGetVbiosVersion, vbios)
GETTER(nvmlDeviceGetBrand, brand)
GETTER(nvmlDeviceGetBoardId, board_id)
GETTER(nvmlDeviceGetMinorNumber, minor)
GETTER(nvmlDeviceGetModuleId, module_id)
GETTER(nvmlDeviceGetNumaNodeId, numa_node)
GETTER(nvmlDeviceGetNumGpuCores, cores)
GETTER(nvmlDeviceGetMemoryBusWidth, memory_bus_width_bits)
GETTER(nvmlDeviceGetPersistenceMode, persistence)
GETTER(nvmlDeviceGetComputeMode, compute_mode)
GETTER(nvmlDeviceGetDisplayMode, display_mode)
GETTER(nvmlDeviceGetDisplayActive, display_active)
EXPORT int nvmlDeviceGetMultiGpuBoard(Handle h, u32 *out) { GPU_CALL(h); return *out = 0, OK; }
EXPORT int nvmlDeviceGetVirtualizationMode(Handle h, u32 *out) { GPU_CALL(h); return *out = 0, OK; }

EXPORT int nvmlDeviceGetArchitecture(Handle h, u32 *out) {
    GPU_CALL(h);
    static const char *const names[] = {"", "", "kepler", "maxwell", "pascal", "volta", "turing", "ampere",
        "ada", "hopper", "blackwell"};
    const char *name = given(call.d, K_architecture);
    *out = 0xFFFFFFFF;
    for (u32 i = 2; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], name)) *out = i;
    return strcmp(name, "none") ? OK : NOT_SUPPORTED;
}
EXPORT int nvmlDeviceGetCudaComputeCapability(Handle h, int *major, int *minor) {
    ANY_CALL(h);
    const Device *gpu = call.d->parent ? call.d->parent : call.d;
    return sscanf(given(gpu, K_compute_capability), "%d.%d", major, minor) == 2 ? OK : NOT_SUPPORTED;
}

typedef struct { char legacy_id[16]; u32 domain, bus, device, device_id, subsystem_id; char id[32]; } PciInfo;
static int pci_info(const Call *c, PciInfo *out) {
    Bus bus = {0};
    const Device *gpu = c->d->parent ? c->d->parent : c->d;
    char id[64];
    int code = text(gpu, K_bus, id, sizeof id);
    if (code || bus_of(id, &bus)) return code ? code : INVALID_ARGUMENT;
    memset(out, 0, sizeof *out);
    out->domain = bus.domain;
    out->bus = bus.bus;
    out->device = bus.device;
    snprintf(out->legacy_id, sizeof out->legacy_id, "%04X:%02X:%02X.0", bus.domain & 0xFFFF, bus.bus & 0xFF,
        bus.device & 0xFF);
    snprintf(out->id, sizeof out->id, "%08X:%02X:%02X.0", bus.domain, bus.bus & 0xFF, bus.device & 0xFF);
    if (number32(c->s, gpu, K_pci_device, &out->device_id)) out->device_id = 0;
    if (number32(c->s, gpu, K_pci_subsystem, &out->subsystem_id)) out->subsystem_id = 0;
    return OK;
}
EXPORT int nvmlDeviceGetPciInfo_v3(Handle h, PciInfo *out) { ANY_CALL(h); return pci_info(&call, out); }
static int pci_info_v2(const Call *c, void *out) { /* without the long id; 16 reserved bytes instead */
    PciInfo info;
    int code = pci_info(c, &info);
    if (!code) memcpy(out, &info, offsetof(PciInfo, id));
    return code;
}
EXPORT int nvmlDeviceGetPciInfo(Handle h, void *out) { ANY_CALL(h); return pci_info_v2(&call, out); }
EXPORT int nvmlDeviceGetPciInfo_v2(Handle h, void *out) { ANY_CALL(h); return pci_info_v2(&call, out); }
typedef struct { u32 version, domain, bus, device, device_id, subsystem_id, base_class, sub_class; char id[32];
    } PciInfoExt;
EXPORT int nvmlDeviceGetPciInfoExt(Handle h, PciInfoExt *out) {
    ANY_CALL(h);
    PciInfo info;
    int code = pci_info(&call, &info);
    if (code) return code;
    out->domain = info.domain;
    out->bus = info.bus;
    out->device = info.device;
    out->device_id = info.device_id;
    out->subsystem_id = info.subsystem_id;
    out->base_class = 3; /* display controller, 3D */
    out->sub_class = 2;
    memcpy(out->id, info.id, sizeof out->id);
    return OK;
}

/* ---------------------------------------------------------------- 2d. memory, utilization */

static int memory(const Call *c, u64 *total, u64 *reserved, u64 *used) {
    int code = number(c->s, c->d, K_memory_total, total);
    if (!code) code = number(c->s, c->d, K_memory_used, used);
    if (!code && number(c->s, c->d, K_memory_reserved, reserved)) *reserved = 0;
    return code;
}
/* The old call counts what the driver keeps for itself as used; the new one tells it apart. */
typedef struct { u64 total, free, used; } Memory;
EXPORT int nvmlDeviceGetMemoryInfo(Handle h, Memory *out) {
    ANY_CALL(h);
    u64 reserved, used;
    int code = memory(&call, &out->total, &reserved, &used);
    if (code) return code;
    out->used = used + reserved;
    out->free = out->total - out->used;
    return OK;
}
typedef struct { u32 version; u64 total, reserved, free, used; } MemoryV2;
EXPORT int nvmlDeviceGetMemoryInfo_v2(Handle h, MemoryV2 *out) {
    ANY_CALL(h);
    if (out->version != (sizeof *out | 2u << 24)) return VERSION_MISMATCH;
    int code = memory(&call, &out->total, &out->reserved, &out->used);
    if (!code) out->free = out->total - out->reserved - out->used;
    return code;
}
EXPORT int nvmlDeviceGetBAR1MemoryInfo(Handle h, Memory *out) {
    ANY_CALL(h);
    int code = number(call.s, call.d, K_bar1_total, &out->total);
    if (!code) code = number(call.s, call.d, K_bar1_used, &out->used);
    if (!code) out->free = out->total - out->used;
    return code;
}

/* True once per nvmlInit for each GPU and kind of call, where the scenario asks for it. */
static int lies(const Call *c, int kind) { return c->d->firstlie && !atomic_exchange(&lied[c->d->gpu][kind], 1); }

typedef struct { u32 gpu, memory; } Rates;
EXPORT int nvmlDeviceGetUtilizationRates(Handle h, Rates *out) {
    GPU_CALL(h);
    if (mig_on(&call)) return NOT_SUPPORTED;
    int code = number32(call.s, call.d, K_util, &out->gpu);
    if (!code && number32(call.s, call.d, K_memutil, &out->memory)) out->memory = 0;
    if (!code && lies(&call, 0)) out->gpu = out->memory = 100;
    return code;
}
static int engine(const Call *c, Key key, u32 *percent, u32 *period_us) {
    *period_us = 167000;
    return mig_on(c) ? NOT_SUPPORTED : number32(c->s, c->d, key, percent);
}
#define ENGINE(function, key) \
    EXPORT int function(Handle h, u32 *percent, u32 *period_us) { \
        GPU_CALL(h); return engine(&call, K_##key, percent, period_us); }
ENGINE(nvmlDeviceGetEncoderUtilization, enc)
ENGINE(nvmlDeviceGetDecoderUtilization, dec)
ENGINE(nvmlDeviceGetJpgUtilization, jpg)
ENGINE(nvmlDeviceGetOfaUtilization, ofa)

/* ---------------------------------------------------------------- 2e. power, clocks, temperature */

GETTER(nvmlDeviceGetPowerUsage, power_mw)
GETTER(nvmlDeviceGetPowerManagementLimit, power_limit_mw)
GETTER(nvmlDeviceGetEnforcedPowerLimit, power_limit_mw)
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, power_default_mw)
GETTER(nvmlDeviceGetPerformanceState, pstate)
GETTER(nvmlDeviceGetPowerState, pstate)
EXPORT int nvmlDeviceGetPowerManagementMode(Handle h, u32 *out) { GPU_CALL(h); return *out = 1, OK; }
EXPORT int nvmlDeviceGetPowerManagementLimitConstraints(Handle h, u32 *low, u32 *high) {
    GPU_CALL(h);
    int code = number32(call.s, call.d, K_power_min_mw, low);
    return code ? code : number32(call.s, call.d, K_power_max_mw, high);
}
static int energy(const Call *c, u64 *out) {
    if (!strcmp(given(c->d, K_energy_mj), "none")) return NOT_SUPPORTED;
    *out = energy_mj(c->s, c->d);
    return OK;
}
EXPORT int nvmlDeviceGetTotalEnergyConsumption(Handle h, u64 *out) { GPU_CALL(h); return energy(&call, out); }

static int clock_mhz(const Call *c, u32 type, int max, u32 *out) {
    static const Key now[] = {K_graphics_clock_mhz, K_sm_clock_mhz, K_memory_clock_mhz, K_video_clock_mhz};
    static const Key top[] = {K_graphics_clock_max_mhz, K_sm_clock_max_mhz, K_memory_clock_max_mhz,
        K_video_clock_max_mhz};
    return type > 3 ? INVALID_ARGUMENT : number32(c->s, c->d, max ? top[type] : now[type], out);
}
EXPORT int nvmlDeviceGetClockInfo(Handle h, u32 type, u32 *out) {
    GPU_CALL(h);
    return clock_mhz(&call, type, 0, out);
}
EXPORT int nvmlDeviceGetMaxClockInfo(Handle h, u32 type, u32 *out) {
    GPU_CALL(h);
    return clock_mhz(&call, type, 1, out);
}
EXPORT int nvmlDeviceGetApplicationsClock(Handle h, u32 type, u32 *out) {
    GPU_CALL(h);
    return clock_mhz(&call, type, 1, out);
}
EXPORT int nvmlDeviceGetDefaultApplicationsClock(Handle h, u32 type, u32 *out) {
    GPU_CALL(h);
    return clock_mhz(&call, type, 1, out);
}
EXPORT int nvmlDeviceGetMaxCustomerBoostClock(Handle h, u32 type, u32 *out) {
    GPU_CALL(h);
    return clock_mhz(&call, type, 1, out);
}
EXPORT int nvmlDeviceGetClock(Handle h, u32 type, u32 id, u32 *out) {
    GPU_CALL(h);
    return clock_mhz(&call, type, id != 0, out);
}

static int throttle(const Call *c, Key key, u64 *out) { return number(c->s, c->d, key, out); }
EXPORT int nvmlDeviceGetCurrentClocksEventReasons(Handle h, u64 *out) {
    GPU_CALL(h);
    return throttle(&call, K_throttle, out);
}
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(Handle h, u64 *out) {
    GPU_CALL(h);
    return throttle(&call, K_throttle, out);
}
EXPORT int nvmlDeviceGetSupportedClocksEventReasons(Handle h, u64 *out) {
    GPU_CALL(h);
    return throttle(&call, K_throttle_supported, out);
}
EXPORT int nvmlDeviceGetSupportedClocksThrottleReasons(Handle h, u64 *out) {
    GPU_CALL(h);
    return throttle(&call, K_throttle_supported, out);
}
typedef struct { u64 reference_us, violation_ns; } Violation;
EXPORT int nvmlDeviceGetViolationStatus(Handle h, u32 policy, Violation *out) {
    GPU_CALL(h);
    out->reference_us = now_us(call.s);
    out->violation_ns = 0;
    if (policy > 1) return OK;
    return number(call.s, call.d, policy ? K_violation_thermal_ns : K_violation_power_ns, &out->violation_ns);
}

EXPORT int nvmlDeviceGetTemperature(Handle h, u32 sensor, u32 *out) {
    GPU_CALL(h);
    return sensor ? INVALID_ARGUMENT : number32(call.s, call.d, K_temperature, out);
}
typedef struct { u32 version, sensor, celsius; } Temperature;
EXPORT int nvmlDeviceGetTemperatureV(Handle h, Temperature *io) {
    GPU_CALL(h);
    if (io->version != (sizeof *io | 1u << 24)) return VERSION_MISMATCH;
    return io->sensor ? INVALID_ARGUMENT : number32(call.s, call.d, K_temperature, &io->celsius);
}
typedef struct { u32 version, celsius; } Margin;
EXPORT int nvmlDeviceGetMarginTemperature(Handle h, Margin *io) {
    GPU_CALL(h);
    return number32(call.s, call.d, K_temperature_margin, &io->celsius);
}
EXPORT int nvmlDeviceGetTemperatureThreshold(Handle h, u32 which, u32 *out) {
    GPU_CALL(h);
    static const Key keys[] = {K_temperature_shutdown, K_temperature_slowdown, K_temperature_memory_max,
        K_temperature_gpu_max};
    return which > 3 ? NOT_SUPPORTED : number32(call.s, call.d, keys[which], out);
}
GETTER(nvmlDeviceGetFanSpeed, fan)
EXPORT int nvmlDeviceGetFanSpeed_v2(Handle h, u32 fan, u32 *out) {
    GPU_CALL(h);
    (void)fan;
    return number32(call.s, call.d, K_fan, out);
}
typedef struct { u32 version, fan, rpm; } FanRpm;
EXPORT int nvmlDeviceGetFanSpeedRPM(Handle h, FanRpm *io) {
    GPU_CALL(h);
    return number32(call.s, call.d, K_fan_rpm, &io->rpm);
}
EXPORT int nvmlDeviceGetNumFans(Handle h, u32 *out) {
    GPU_CALL(h);
    if (call.d->value[K_fans]) return number32(call.s, call.d, K_fans, out);
    u32 speed;
    return *out = number32(call.s, call.d, K_fan, &speed) ? 0 : 1, OK;
}

/* ---------------------------------------------------------------- 2f. errors: ECC, rows, PCIe, NVLink */

static int two(const Call *c, Key key, u32 *current_mode, u32 *pending) {
    int code = number32(c->s, c->d, key, current_mode);
    if (!code) *pending = *current_mode;
    return code;
}
EXPORT int nvmlDeviceGetEccMode(Handle h, u32 *now, u32 *pending) {
    GPU_CALL(h);
    return two(&call, K_ecc, now, pending);
}
GETTER(nvmlDeviceGetDefaultEccMode, ecc)
static int ecc_errors(const Call *c, u32 uncorrected, u32 aggregate, u64 *out) {
    static const Key keys[2][2] = {{K_ecc_corrected_volatile, K_ecc_corrected_aggregate},
        {K_ecc_uncorrected_volatile, K_ecc_uncorrected_aggregate}};
    u64 on;
    if (uncorrected > 1 || aggregate > 1) return INVALID_ARGUMENT;
    if (number(c->s, c->d, K_ecc, &on) || !on) return NOT_SUPPORTED;
    return number(c->s, c->d, keys[uncorrected][aggregate], out);
}
EXPORT int nvmlDeviceGetTotalEccErrors(Handle h, u32 uncorrected, u32 aggregate, u64 *out) {
    GPU_CALL(h);
    return ecc_errors(&call, uncorrected, aggregate, out);
}
EXPORT int nvmlDeviceGetMemoryErrorCounter(Handle h, u32 uncorrected, u32 aggregate, u32 location, u64 *out) {
    GPU_CALL(h);
    int code = ecc_errors(&call, uncorrected, aggregate, out);
    if (!code && location != 2) *out = 0; /* all of them in device memory */
    return code;
}
EXPORT int nvmlDeviceGetRetiredPages(Handle h, u32 cause, u32 *count, u64 *addresses) {
    GPU_CALL(h);
    (void)addresses;
    u64 pages;
    int code = number(call.s, call.d, cause ? K_retired_dbe : K_retired_sbe, &pages);
    if (code) return code;
    u32 room = *count;
    *count = (u32)pages;
    if (room < pages) return INSUFFICIENT_SIZE;
    for (u64 i = 0; addresses && i < pages; i++) addresses[i] = 0x1000 * (i + 1);
    return OK;
}
GETTER(nvmlDeviceGetRetiredPagesPendingStatus, retired_pending)
EXPORT int nvmlDeviceGetRemappedRows(Handle h, u32 *correctable, u32 *uncorrectable, u32 *pending, u32 *failure) {
    GPU_CALL(h);
    int code = number32(call.s, call.d, K_remapped_correctable, correctable);
    if (!code) code = number32(call.s, call.d, K_remapped_uncorrectable, uncorrectable);
    if (!code) code = number32(call.s, call.d, K_remapped_pending, pending);
    return code ? code : number32(call.s, call.d, K_remapped_failure, failure);
}
typedef struct { u32 max, high, partial, low, none; } RemapHistogram;
EXPORT int nvmlDeviceGetRowRemapperHistogram(Handle h, RemapHistogram *out) {
    GPU_CALL(h);
    memset(out, 0, sizeof *out);
    return number32(call.s, call.d, K_remap_banks, &out->max);
}

typedef struct { u32 version, flag; } Unrepairable;
EXPORT int nvmlDeviceGetUnrepairableMemoryFlag_v1(Handle h, Unrepairable *out) {
    GPU_CALL(h);
    if (out->version != (1u << 24 | sizeof *out)) return VERSION_MISMATCH;
    return number32(call.s, call.d, K_unrepairable, &out->flag);
}
typedef struct { u32 version; u64 aggregate[3], since_load[3], unit[5]; u32 exceeded; } Sram;
EXPORT int nvmlDeviceGetSramEccErrorStatus(Handle h, Sram *out) {
    GPU_CALL(h);
    static const Key keys[] = {K_sram_parity, K_sram_secded, K_sram_corrected};
    u64 on;
    if (out->version != (1u << 24 | sizeof *out)) return VERSION_MISMATCH;
    if (number(call.s, call.d, K_ecc, &on) || !on) return NOT_SUPPORTED;
    memset(out->aggregate, 0, sizeof *out - offsetof(Sram, aggregate));
    for (int i = 0; i < 3; i++) {
        int code = number(call.s, call.d, keys[i], &out->aggregate[i]);
        if (code) return code;
    }
    int code = number(call.s, call.d, K_sram_l2, &out->unit[0]);
    return code ? code : number32(call.s, call.d, K_sram_exceeded, &out->exceeded);
}
typedef struct { u32 version; unsigned char cluster[16]; u32 status, clique; unsigned char state; u32 health; } Fabric;
EXPORT int nvmlDeviceGetGpuFabricInfoV(Handle h, Fabric *out) {
    GPU_CALL(h);
    u32 state = 0;
    if (out->version != (2u << 24 | sizeof *out)) return VERSION_MISMATCH;
    int code = number32(call.s, call.d, K_fabric_state, &state);
    if (!code) code = number32(call.s, call.d, K_fabric_status, &out->status);
    if (!code) code = number32(call.s, call.d, K_fabric_clique, &out->clique);
    if (!code) code = number32(call.s, call.d, K_fabric_health, &out->health);
    memset(out->cluster, state == 3 ? 0xC1 : 0, sizeof out->cluster);
    out->state = (unsigned char)state;
    return code;
}

GETTER(nvmlDeviceGetPcieReplayCounter, pcie_replay)
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, pcie_gen)
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, pcie_gen_max)
GETTER(nvmlDeviceGetGpuMaxPcieLinkGeneration, pcie_gen_max)
GETTER(nvmlDeviceGetCurrPcieLinkWidth, pcie_width)
GETTER(nvmlDeviceGetMaxPcieLinkWidth, pcie_width_max)
EXPORT int nvmlDeviceGetPcieThroughput(Handle h, u32 counter, u32 *out) {
    GPU_CALL(h);
    return number32(call.s, call.d, counter ? K_pcie_rx_kib_s : K_pcie_tx_kib_s, out);
}
EXPORT int nvmlDeviceGetPcieSpeed(Handle h, u32 *out) { GPU_CALL(h); return *out = 32000, OK; }

static int nvlink(const Call *c, u32 link) { /* OK, or why this link cannot be asked */
    u64 links;
    if (number(c->s, c->d, K_nvlinks, &links)) return NOT_SUPPORTED;
    return link < links ? OK : INVALID_ARGUMENT;
}
EXPORT int nvmlDeviceGetNvLinkState(Handle h, u32 link, u32 *out) {
    GPU_CALL(h);
    *out = 1;
    return nvlink(&call, link);
}
EXPORT int nvmlDeviceGetNvLinkVersion(Handle h, u32 link, u32 *out) {
    GPU_CALL(h);
    *out = 7;
    return nvlink(&call, link);
}
EXPORT int nvmlDeviceGetNvLinkCapability(Handle h, u32 link, u32 capability, u32 *out) {
    GPU_CALL(h);
    *out = capability < 4;
    return nvlink(&call, link);
}
EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(Handle h, u32 link, u32 *out) {
    GPU_CALL(h);
    *out = 2;
    return nvlink(&call, link);
}
static int is_nvlink5(const Call *c) {
    u64 version;
    return !number(c->s, c->d, K_nvlink_version, &version) && version >= 5;
}
EXPORT int nvmlDeviceGetNvLinkErrorCounter(Handle h, u32 link, u32 counter, u64 *out) {
    GPU_CALL(h);
    (void)counter;
    int code = is_nvlink5(&call) ? NOT_SUPPORTED : nvlink(&call, link);
    return code ? code : number(call.s, call.d, K_nvlink_errors, out);
}
static int nvlink_remote(const Call *c, u32 link, PciInfo *out) {
    int code = nvlink(c, link);
    if (code) return code;
    memset(out, 0, sizeof *out); /* an NVSwitch */
    strcpy(out->legacy_id, "0000:05:00.0");
    strcpy(out->id, "00000000:05:00.0");
    out->bus = 5;
    out->device_id = 0x22A310DE;
    return OK;
}
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo(Handle h, u32 link, PciInfo *out) {
    GPU_CALL(h);
    return nvlink_remote(&call, link, out);
}
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(Handle h, u32 link, PciInfo *out) {
    GPU_CALL(h);
    return nvlink_remote(&call, link, out);
}

/* ---------------------------------------------------------------- 2g. field values */

typedef struct {
    u32 id, scope;
    int64_t timestamp_us, latency_us;
    u32 type; /* 1 unsigned int, 3 unsigned long long */
    int code;
    union { double d; u64 u; } value;
} Field;

static int field_number(const Call *c, u32 id, u32 scope, u32 *type, u64 *out) {
    u64 links = 0;
    *type = 3;
    if (number(c->s, c->d, K_nvlinks, &links)) links = 0;
    Key key;
    switch (id) {
    case 83: case 191: return energy(c, out);
    case 3: return ecc_errors(c, 0, 0, out);
    case 4: return ecc_errors(c, 1, 0, out);
    case 5: return ecc_errors(c, 0, 1, out);
    case 6: return ecc_errors(c, 1, 1, out);
    case 74: key = K_violation_power_ns; return number(c->s, c->d, key, out);
    case 75: key = K_violation_thermal_ns; return number(c->s, c->d, key, out);
    case 76: case 77: case 78: case 79: *out = 0; return OK;
    case 138: case 139: case 140: case 141: /* all links together, or one of them */
        if (is_nvlink5(c)) return NOT_SUPPORTED;
        if (!links || (scope != 0xFFFFFFFF && scope >= links)) return links ? INVALID_ARGUMENT : NOT_SUPPORTED;
        if (number(c->s, c->d, id % 2 ? K_nvlink_rx_kib : K_nvlink_tx_kib, out)) return NOT_SUPPORTED;
        if (scope != 0xFFFFFFFF) *out /= links;
        return OK;
    case 202: case 204: /* bytes of one NVLink 5 */
        if (!links || !is_nvlink5(c)) return NOT_SUPPORTED;
        if (scope >= links || number(c->s, c->d, id == 204 ? K_nvlink_rx_kib : K_nvlink_tx_kib, out)) return INVALID_ARGUMENT;
        *out = *out * 1024 / links;
        return OK;
    case 206: case 207: case 208: case 209: case 210: case 211: case 212: case 214: case 215: case 219: case 221:
        if (!links || !is_nvlink5(c)) return NOT_SUPPORTED;
        return scope < links ? number(c->s, c->d, K_nvlink_errors, out) : INVALID_ARGUMENT;
    case 231: case 232: case 233: /* errors of one C2C link */
        if (number(c->s, c->d, K_c2c_links, &links)) return NOT_SUPPORTED;
        return scope < links ? number(c->s, c->d, K_c2c_errors, out) : INVALID_ARGUMENT;
    case 38: case 45: case 52: case 59: case 160: case 161: case 162: case 163:
        return links ? number(c->s, c->d, K_nvlink_errors, out) : NOT_SUPPORTED;
    }
    *type = 1;
    if ((id >= 84 && id <= 90) || (id >= 132 && id <= 137) || id == 164)
        return links ? number(c->s, c->d, K_nvlink_mb_s, out) : NOT_SUPPORTED;
    switch (id) {
    case 1: case 2: key = K_ecc; break;
    case 29: key = K_retired_sbe; break;
    case 30: key = K_retired_dbe; break;
    case 31: key = K_retired_pending; break;
    case 82: key = K_memory_temperature; break;
    case 91: case 147: key = K_nvlinks; break;
    case 94: key = K_pcie_replay; break;
    case 142: key = K_remapped_correctable; break;
    case 143: key = K_remapped_uncorrectable; break;
    case 144: key = K_remapped_pending; break;
    case 145: key = K_remapped_failure; break;
    case 165: *out = 1; return nvlink(c, scope);
    case 166: *out = 7; return nvlink(c, scope);
    case 170: key = K_c2c_links; break;
    case 171: { /* the last links are down */
        u64 count, down;
        if (number(c->s, c->d, K_c2c_links, &count) || number(c->s, c->d, K_c2c_down, &down)) return NOT_SUPPORTED;
        return *out = scope + down < count, scope < count ? OK : INVALID_ARGUMENT;
    }
    case 185: case 186: /* scopes: 0 GPU, 1 module, 2 memory, of which an H200 has only the average */
        if (scope > 2 || (scope == 2 && id == 186)) return NOT_SUPPORTED;
        key = scope == 2 ? K_power_memory_mw : scope == 1 ? K_power_module_mw : id == 185 ? K_power_mw : K_power_instant_mw;
        break;
    case 251: /* 580.65 has a counter of time under this number */
        if (!strncmp(c->s->version, "580.65.", 7)) *type = 3;
        key = K_power_smoothing;
        break;
    case 187: key = K_power_min_mw; break;
    case 188: key = K_power_max_mw; break;
    case 189: key = K_power_default_mw; break;
    case 190: case 192: key = K_power_limit_mw; break;
    case 230: key = K_recovery_action; break;
    default: return NOT_SUPPORTED;
    }
    return number(c->s, c->d, key, out);
}
EXPORT int nvmlDeviceGetFieldValues(Handle h, int count, Field *fields) {
    GPU_CALL(h);
    for (int i = 0; i < count; i++) {
        Field *f = &fields[i];
        f->timestamp_us = (int64_t)now_us(call.s);
        f->latency_us = 0;
        f->value.u = 0;
        f->code = field_number(&call, f->id, f->scope, &f->type, &f->value.u);
    }
    return count > 0 ? OK : INVALID_ARGUMENT;
}

typedef struct { u64 timestamp_us; union { double d; u32 u; u64 ull; } value; } ValueSample;
EXPORT int nvmlDeviceGetSamples(Handle h, u32 kind, u64 last_seen_us, u32 *type, u32 *count, ValueSample *out) {
    GPU_CALL(h);
    static const struct { Key key; u32 period_us, kept; } kinds[] = { /* the first three as on an H200 */
        {K_power_mw, 20000, 119}, {K_util, 200000, 71}, {K_memutil, 200000, 71}, {K_enc, 20000, 100},
        {K_dec, 20000, 100}, {K_sm_clock_mhz, 20000, 100}, {K_memory_clock_mhz, 20000, 100}, {K_power_mw, 20000, 100},
        {K_jpg, 20000, 100}, {K_ofa, 20000, 100}};
    if (kind > 9 || (mig_on(&call) && kind > 0 && kind < 5)) return NOT_SUPPORTED;
    u64 value, period_us = kinds[kind].period_us, newest = now_us(call.s) / period_us, seen = last_seen_us / period_us;
    int code = number(call.s, call.d, kinds[kind].key, &value);
    if (code) return code;
    u64 rows = newest <= seen ? 0 : newest - seen, first;
    if (rows > kinds[kind].kept) rows = kinds[kind].kept;
    first = newest - rows + 1;
    *type = 1;
    if (!out) return *count = kinds[kind].kept + 1, OK;
    if (!rows) return NOT_FOUND;
    if (*count < rows) rows = *count; /* the newest are left out, without an error */
    *count = (u32)rows;
    for (u64 i = 0; i < rows; i++) {
        out[i].timestamp_us = (first + i) * period_us;
        out[i].value.ull = ~0ull; /* the other half is undefined */
        out[i].value.u = (u32)value;
    }
    return OK;
}

/* ---------------------------------------------------------------- 2h. processes */

/* The sizing protocol of all lists: too little room answers how much is needed. A rule
 * `insufficient` makes a call that brought room fail so, as when a list grows in between. */
static int sized(const Call *c, u32 *count, int has_room, u32 needed) {
    u32 room = has_room ? *count : 0;
    *count = needed;
    if (room && find_rule(c, INSUFFICIENT)) return *count = needed + 1, INSUFFICIENT_SIZE;
    return room < needed ? INSUFFICIENT_SIZE : OK;
}

typedef struct { u32 pid; u64 memory; } ProcessV1;
typedef struct { u32 pid; u64 memory; u32 gi, ci; } ProcessV2;

static int process_list(const Call *c, List list, int version, u32 *count, void *out) {
    u32 needed = 0, at = 0;
    for (int i = 0; i < c->s->process_count; i++)
        needed += on_device(c->d, &c->s->processes[i]) && c->s->processes[i].list == list;
    int code = sized(c, count, out != NULL, needed);
    for (int i = 0; !code && i < c->s->process_count; i++) {
        const Process *p = &c->s->processes[i];
        if (!on_device(c->d, p) || p->list != list) continue;
        if (version == 1) ((ProcessV1 *)out)[at++] = (ProcessV1){p->pid, p->memory};
        else ((ProcessV2 *)out)[at++] = (ProcessV2){p->pid, p->memory, p->gi, p->ci};
    }
    return code;
}
#define LIST(function, list, version) \
    EXPORT int function(Handle h, u32 *count, void *out) { \
        ANY_CALL(h); return process_list(&call, list, version, count, out); }
LIST(nvmlDeviceGetComputeRunningProcesses, COMPUTE, 1)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, COMPUTE, 2)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, COMPUTE, 2)
LIST(nvmlDeviceGetGraphicsRunningProcesses, GRAPHICS, 1)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, GRAPHICS, 2)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, GRAPHICS, 2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, MPS, 1)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, MPS, 2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, MPS, 2)

typedef struct { u32 pid; u64 memory; u32 gi, ci; u64 protected_memory; } ProcessDetail;
typedef struct { u32 version, mode, count; ProcessDetail *rows; } DetailList;
EXPORT int nvmlDeviceGetRunningProcessDetailList(Handle h, DetailList *io) {
    ANY_CALL(h);
    if (io->version != (sizeof *io | 1u << 24)) return VERSION_MISMATCH;
    u32 needed = 0, at = 0;
    for (int i = 0; i < call.s->process_count; i++)
        needed += on_device(call.d, &call.s->processes[i]) && call.s->processes[i].list == (List)io->mode;
    int code = sized(&call, &io->count, io->rows != NULL, needed);
    for (int i = 0; !code && i < call.s->process_count; i++) {
        const Process *p = &call.s->processes[i];
        if (on_device(call.d, p) && p->list == (List)io->mode)
            io->rows[at++] = (ProcessDetail){p->pid, p->memory, p->gi, p->ci, 0};
    }
    return code;
}

/* Rows newer than last_seen_us into out (which may be NULL); returns how many there are. The
 * driver samples about every 200 ms; explicit `sample` lines replace the rows made from processes. */
static u32 utilization_rows(const Call *c, u64 last_seen_us, Sample *out) {
    u64 newest = now_us(c->s) / 200000 * 200000;
    u32 count = 0;
    int explicit = 0;
    for (int i = 0; i < c->s->sample_count; i++) {
        Sample row = c->s->samples[i];
        if (row.gpu != c->d->gpu) continue;
        explicit = 1;
        if (!row.ts) row.ts = newest;
        if (row.ts <= last_seen_us && !row.always) continue;
        if (out) out[count] = row;
        count++;
    }
    for (int i = 0; !explicit && newest > last_seen_us && i < c->s->process_count; i++) {
        const Process *p = &c->s->processes[i];
        if (p->gpu != c->d->gpu || !(p->sm | p->mem | p->enc | p->dec) || !first_of_pid(c->s, c->d, i)) continue;
        if (out) out[count] = (Sample){p->gpu, 0, p->pid, newest, p->sm, p->mem, p->enc, p->dec};
        count++;
    }
    return count;
}
static Sample *utilization(const Call *c, u64 last_seen_us, u32 *count, int has_room, int *code) {
    Sample *rows = NULL;
    *code = mig_on(c) ? NOT_SUPPORTED : OK;
    if (*code) return NULL;
    u32 needed = utilization_rows(c, last_seen_us, NULL);
    *code = needed ? sized(c, count, has_room, needed) : NOT_FOUND;
    if (!*code) {
        rows = calloc(needed, sizeof *rows);
        utilization_rows(c, last_seen_us, rows);
        int lie = lies(c, 1);
        for (u32 i = 0; lie && i < needed; i++) rows[i].sm = rows[i].mem = 100;
    }
    return rows;
}
typedef struct { u32 pid; u64 ts; u32 sm, mem, enc, dec; } UtilizationOld;
typedef struct { u64 ts; u32 pid, sm, mem, enc, dec, jpg, ofa; } UtilizationNew;

EXPORT int nvmlDeviceGetProcessUtilization(Handle h, UtilizationOld *out, u32 *count, u64 last_seen_us) {
    GPU_CALL(h);
    int code;
    Sample *rows = utilization(&call, last_seen_us, count, out != NULL, &code);
    for (u32 i = 0; rows && i < *count; i++)
        out[i] = (UtilizationOld){rows[i].pid, rows[i].ts, rows[i].sm, rows[i].mem, rows[i].enc, rows[i].dec};
    free(rows);
    return code;
}
typedef struct { u32 version, count; u64 last_seen_us; UtilizationNew *rows; } UtilizationList;
EXPORT int nvmlDeviceGetProcessesUtilizationInfo(Handle h, UtilizationList *io) {
    GPU_CALL(h);
    if (io->version != (sizeof *io | 1u << 24)) return VERSION_MISMATCH;
    int code;
    Sample *rows = utilization(&call, io->last_seen_us, &io->count, io->rows != NULL, &code);
    for (u32 i = 0; rows && i < io->count; i++)
        io->rows[i] = (UtilizationNew){rows[i].ts, rows[i].pid, rows[i].sm, rows[i].mem, rows[i].enc,
            rows[i].dec, 0, 0};
    free(rows);
    return code;
}

/* ---------------------------------------------------------------- 2i. accounting */

static int accounting_on(const Call *c, u64 *on) {
    return mig_on(c) ? NOT_SUPPORTED : number(c->s, c->d, K_accounting, on);
}
EXPORT int nvmlDeviceGetAccountingMode(Handle h, u32 *out) {
    GPU_CALL(h);
    u64 on = 0;
    int code = accounting_on(&call, &on);
    return *out = (u32)on, code;
}
GETTER(nvmlDeviceGetAccountingBufferSize, accounting_buffer)
EXPORT int nvmlDeviceGetAccountingPids(Handle h, u32 *count, u32 *pids) {
    GPU_CALL(h);
    u64 on = 0;
    u32 needed = 0, at = 0;
    int code = accounting_on(&call, &on);
    if (code) return code;
    for (int i = 0; on && i < call.s->account_count; i++) needed += call.s->accounts[i].gpu == call.d->gpu;
    code = sized(&call, count, pids != NULL, needed);
    for (int i = 0; !code && on && i < call.s->account_count; i++)
        if (call.s->accounts[i].gpu == call.d->gpu) pids[at++] = call.s->accounts[i].pid;
    return code;
}
static int account(const Call *c, u32 pid, const Account **out) {
    u64 on = 0;
    int code = accounting_on(c, &on);
    if (code) return code;
    for (int i = 0; on && i < c->s->account_count; i++)
        if (c->s->accounts[i].gpu == c->d->gpu && c->s->accounts[i].pid == pid) return *out = &c->s->accounts[i], OK;
    return NOT_FOUND;
}
typedef struct { u32 gpu, mem; u64 max_memory, time_ms, start_us; u32 running, reserved[5]; } AccountV1;
EXPORT int nvmlDeviceGetAccountingStats(Handle h, u32 pid, AccountV1 *out) {
    GPU_CALL(h);
    const Account *a;
    int code = account(&call, pid, &a);
    if (code) return code;
    out->gpu = a->gpu_util;
    out->mem = a->mem_util;
    out->max_memory = a->max_memory;
    out->time_ms = a->time_ms;
    out->start_us = a->start_us;
    out->running = a->running;
    return OK;
}
typedef struct { u32 pid, running, gpu, mem; u64 max_memory; u32 samples; u64 sum_gpu, sum_mem, time_ms,
    start_us; } AccountV2;
EXPORT int nvmlDeviceGetAccountingStats_v2(Handle h, AccountV2 *io) {
    GPU_CALL(h);
    if (atoi(call.s->version) < 610) return FUNCTION_NOT_FOUND; /* the driver branch that brought it */
    const Account *a;
    int code = account(&call, io->pid, &a);
    if (code) return code;
    io->running = a->running;
    io->gpu = a->gpu_util;
    io->mem = a->mem_util;
    io->max_memory = a->max_memory;
    io->samples = a->samples;
    io->sum_gpu = (u64)a->samples * a->gpu_util * 100; /* hundredths of a percent */
    io->sum_mem = (u64)a->samples * a->mem_util * 100;
    io->time_ms = a->time_ms;
    io->start_us = a->start_us;
    return OK;
}

/* ---------------------------------------------------------------- vGPU licenses */

typedef struct { u32 code, state; char license[128], product[128]; u32 enabled; struct {
    u32 year; unsigned short month, day, hour, minute, second; unsigned char status; } expiry; } Licensable;
typedef struct { u32 supported, count; Licensable of[3]; } Licensables;
EXPORT int nvmlDeviceGetGridLicensableFeatures_v4(Handle h, Licensables *out) {
    GPU_CALL(h);
    u64 license; /* 0: needs none, as on bare metal; 1: needs one; 2: and has it, after a feature that is not licensed */
    int code = number(call.s, call.d, K_vgpu_license, &license);
    if (code) return code;
    memset(out, 0, sizeof *out);
    out->supported = license > 0;
    out->count = (u32)license;
    if (license > 1) out->of[1].state = 1;
    return OK;
}

/* ---------------------------------------------------------------- 2j. MIG */

EXPORT int nvmlDeviceGetMigMode(Handle h, u32 *now, u32 *pending) {
    GPU_CALL(h);
    return two(&call, K_mig, now, pending);
}
EXPORT int nvmlDeviceGetMaxMigDeviceCount(Handle h, u32 *out) {
    GPU_CALL(h);
    u64 mode;
    return *out = number(call.s, call.d, K_mig, &mode) ? 0 : 7, OK;
}
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(Handle h, u32 index, Handle *out) {
    GPU_CALL(h);
    if (!mig_on(&call) || index >= (u32)call.d->mig_count) return NOT_FOUND;
    *out = handle_of(call.d->gpu, (int)index);
    return OK;
}
EXPORT int nvmlDeviceIsMigDeviceHandle(Handle h, u32 *out) { ANY_CALL(h); return *out = call.d->parent != NULL, OK; }
EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Handle h, Handle *out) {
    ANY_CALL(h);
    if (!call.d->parent) return INVALID_ARGUMENT;
    *out = handle_of(call.d->gpu, -1);
    return OK;
}
EXPORT int nvmlDeviceGetGpuInstanceId(Handle h, u32 *out) {
    ANY_CALL(h);
    return call.d->parent ? number32(call.s, call.d, K_gi, out) : INVALID_ARGUMENT;
}
EXPORT int nvmlDeviceGetComputeInstanceId(Handle h, u32 *out) {
    ANY_CALL(h);
    return call.d->parent ? number32(call.s, call.d, K_ci, out) : INVALID_ARGUMENT;
}

typedef struct { u32 sms, copy_engines, decoders, encoders, jpegs, ofas, gpu_slices, compute_slices;
    u64 memory_mb; } Attributes;
static int attributes(const Call *c, Attributes *out) {
    if (!c->d->parent) return NOT_SUPPORTED;
    u64 total;
    memset(out, 0, sizeof *out);
    out->copy_engines = out->decoders = 1;
    out->gpu_slices = out->compute_slices = (u32)atoi(given(c->d, K_profile)); /* 1g.18gb, 3g.71gb */
    if (number(c->s, c->d, K_memory_total, &total)) total = 0;
    out->memory_mb = total >> 20;
    return number32(c->s, c->d, K_sms, &out->sms);
}
EXPORT int nvmlDeviceGetAttributes(Handle h, Attributes *out) { ANY_CALL(h); return attributes(&call, out); }
EXPORT int nvmlDeviceGetAttributes_v2(Handle h, Attributes *out) { ANY_CALL(h); return attributes(&call, out); }

/* GPU instance handles are the handles of their MIG devices. */
EXPORT int nvmlDeviceGetGpuInstanceById(Handle h, u32 id, Handle *out) {
    GPU_CALL(h);
    u32 gi;
    for (int m = 0; m < call.d->mig_count; m++)
        if (!number32(call.s, &call.d->migs[m], K_gi, &gi) && gi == id) return *out = handle_of(call.d->gpu, m), OK;
    return NOT_FOUND;
}
static u32 profile_number(const Device *mig) { /* NVML numbers profiles by slices: 1 2 3 4 7 */
    static const u32 of_slices[] = {0, 0, 1, 2, 3, 0, 6, 4, 5};
    int slices = atoi(given(mig, K_profile));
    return slices > 0 && slices < 9 ? of_slices[slices] : 0;
}
typedef struct { Handle device; u32 id, profile, start, size; } InstanceInfo;
EXPORT int nvmlGpuInstanceGetInfo(Handle h, InstanceInfo *out) {
    ANY_CALL(h);
    if (!call.d->parent) return INVALID_ARGUMENT;
    out->device = handle_of(call.d->gpu, -1);
    out->profile = profile_number(call.d);
    out->start = (u32)(call.d - call.d->parent->migs);
    out->size = 1;
    return number32(call.s, call.d, K_gi, &out->id);
}
typedef struct { u32 id, p2p, slices, instances, sms, copy_engines, decoders, encoders, jpegs, ofas;
    u64 memory_mb; } ProfileInfo;
static int profile_info(Call *c, u32 profile, ProfileInfo *out, const char **name) {
    for (int m = 0; m < c->d->mig_count; m++) {
        const Device *mig = &c->d->migs[m];
        if (profile_number(mig) != profile) continue;
        Call of_mig = *c;
        of_mig.d = mig;
        Attributes a;
        int code = attributes(&of_mig, &a);
        *out = (ProfileInfo){profile, 0, a.gpu_slices, 7 / (a.gpu_slices ? a.gpu_slices : 1), a.sms, 1, 1, 0, 1,
            0, a.memory_mb};
        *name = given(mig, K_profile);
        return code;
    }
    return NOT_SUPPORTED;
}
EXPORT int nvmlDeviceGetGpuInstanceProfileInfo(Handle h, u32 profile, ProfileInfo *out) {
    GPU_CALL(h);
    const char *name;
    return profile_info(&call, profile, out, &name);
}
/* v2 puts a version first, which moves every field, the 64-bit one by its alignment too. */
typedef struct { u32 version, id, p2p, slices, instances, sms, copy_engines, decoders, encoders, jpegs, ofas;
    u64 memory_mb; char name[96]; } ProfileInfoV2;
EXPORT int nvmlDeviceGetGpuInstanceProfileInfoV(Handle h, u32 profile, ProfileInfoV2 *out) {
    GPU_CALL(h);
    ProfileInfo p;
    const char *name;
    if (out->version != (sizeof *out | 2u << 24)) return VERSION_MISMATCH;
    int code = profile_info(&call, profile, &p, &name);
    if (code) return code;
    memcpy(&out->id, &p, offsetof(ProfileInfo, memory_mb));
    out->memory_mb = p.memory_mb;
    snprintf(out->name, sizeof out->name, "MIG %s", name);
    return OK;
}

/* ---------------------------------------------------------------- 2k. GPM */

typedef struct GpmSample {
    u64 number; /* among the samples of this device; 0 before it is filled */
    double value[GPM_COUNT], sum[GPM_COUNT]; /* sum: of this sample and all before */
    int supported[GPM_COUNT];
    struct GpmSample *next;
} GpmSample;
static GpmSample last_sample[MAX_GPUS][1 + MAX_MIGS], *allocated_samples; /* under lock */

/* NVIDIA's library reads and frees whatever it is given. Returns the link to the sample; the caller has the lock. */
static GpmSample **allocated(const char *function, const GpmSample *sample) {
    GpmSample **link = &allocated_samples;
    while (*link && *link != sample) link = &(*link)->next;
    if (!*link) {
        fprintf(stderr, "%s: a sample that is not allocated\n", function);
        abort();
    }
    return link;
}
typedef struct {
    u32 id;
    int code;
    double value;
    const char *short_name, *long_name, *unit;
} GpmMetric;

typedef struct { u32 version, supported; } GpmSupport;
EXPORT int nvmlGpmQueryDeviceSupport(Handle h, GpmSupport *out) {
    ANY_CALL(h);
    const Device *gpu = call.d->parent ? call.d->parent : call.d;
    if (number32(call.s, gpu, K_gpm, &out->supported)) out->supported = 0;
    return OK;
}
EXPORT int nvmlGpmSampleAlloc(GpmSample **out) {
    SYSTEM_CALL;
    *out = calloc(1, sizeof **out);
    pthread_mutex_lock(&lock);
    (*out)->next = allocated_samples;
    allocated_samples = *out;
    samples_in_use++;
    pthread_mutex_unlock(&lock);
    return OK;
}
EXPORT int nvmlGpmSampleFree(GpmSample *sample) {
    BEGIN(0, NULL);
    pthread_mutex_lock(&lock);
    GpmSample **link = allocated(__func__, sample);
    *link = sample->next;
    samples_in_use--;
    pthread_mutex_unlock(&lock);
    free(sample);
    return OK;
}

static int gpm_sample(const Call *c, const Device *d, GpmSample *out) {
    const Device *gpu = d->parent ? d->parent : d;
    u64 on, busy = 0;
    if (number(c->s, gpu, K_gpm, &on) || !on) return NOT_SUPPORTED;
    if (number(c->s, d, K_util, &busy)) busy = 0;
    pthread_mutex_lock(&lock);
    allocated(c->counter->name, out);
    GpmSample *last = &last_sample[gpu->gpu][d->parent ? 1 + (int)(d - gpu->migs) : 0], *next = out->next;
    for (int i = 0; i < GPM_COUNT; i++) {
        const char *v = d->gpm[i];
        last->supported[i] = !v || strcmp(v, "none");
        last->value[i] = v ? strtod(v, NULL) : GPM[i].id <= 2 ? (double)busy : 0;
        last->sum[i] += last->value[i];
    }
    last->number++;
    *out = *last;
    out->next = next;
    pthread_mutex_unlock(&lock);
    return OK;
}
EXPORT int nvmlGpmSampleGet(Handle h, GpmSample *out) {
    ANY_CALL(h);
    return out ? gpm_sample(&call, call.d, out) : INVALID_ARGUMENT;
}
EXPORT int nvmlGpmMigSampleGet(Handle h, u32 id, GpmSample *out) {
    GPU_CALL(h);
    u32 gi;
    for (int m = 0; m < call.d->mig_count; m++)
        if (!number32(call.s, &call.d->migs[m], K_gi, &gi) && gi == id)
            return gpm_sample(&call, &call.d->migs[m], out);
    return NOT_FOUND;
}
/* Between two samples a metric is what the scenario said when the second was taken: a test changes the
 * file, lets time pass, samples. With samples between the two it is the mean, as if all were equally far
 * apart. Later library versions lengthen the array of metrics only. */
typedef struct { u32 version, count; GpmSample *first, *second; GpmMetric metrics[]; } GpmRequest;
EXPORT int nvmlGpmMetricsGet(GpmRequest *io) {
    SYSTEM_CALL;
    if (io->version != 1) return VERSION_MISMATCH;
    const GpmSample *first = io->first, *second = io->second;
    if (!first || !second) return INVALID_ARGUMENT;
    pthread_mutex_lock(&lock);
    allocated(__func__, first);
    allocated(__func__, second);
    pthread_mutex_unlock(&lock);
    if (first == second || !first->number || !second->number) return INVALID_ARGUMENT;
    for (u32 m = 0; m < io->count; m++) {
        GpmMetric *metric = &io->metrics[m];
        metric->code = NOT_SUPPORTED;
        metric->value = 0;
        for (int i = 0; i < GPM_COUNT; i++)
            if (GPM[i].id == metric->id && second->supported[i]) {
                metric->code = OK;
                metric->value = second->number <= first->number + 1
                                    ? second->value[i]
                                    : (second->sum[i] - first->sum[i]) / (double)(second->number - first->number);
                metric->short_name = metric->long_name = GPM[i].name;
                metric->unit = metric->id < 20 ? "%" : "MiB/s";
            }
    }
    return OK;
}
EXPORT int nvmlGpmQueryIfStreamingEnabled(Handle h, u32 *out) { GPU_CALL(h); return *out = 0, OK; }

/* ---------------------------------------------------------------- 2l. events */

enum { EVENT_XID = 8, EVENT_TYPES = 0x1F };
typedef struct { atomic_ullong types[MAX_GPUS]; u64 seen[MAX_GPUS]; } EventSet; /* every set gets every event */
typedef struct { Handle device; u64 type, data; u32 gi, ci; } Event;

EXPORT int nvmlEventSetCreate(EventSet **out) {
    SYSTEM_CALL;
    *out = calloc(1, sizeof **out);
    event_sets++;
    pthread_mutex_lock(&lock);
    memcpy((*out)->seen, delivered, sizeof delivered); /* what others have had is past */
    pthread_mutex_unlock(&lock);
    return OK;
}
EXPORT int nvmlEventSetFree(EventSet *set) { BEGIN(0, NULL); free(set); event_sets--; return OK; }
EXPORT int nvmlDeviceGetSupportedEventTypes(Handle h, u64 *out) { GPU_CALL(h); return *out = EVENT_TYPES, OK; }
EXPORT int nvmlDeviceRegisterEvents(Handle h, u64 types, EventSet *set) {
    GPU_CALL(h);
    if (types & ~(u64)EVENT_TYPES) return NOT_SUPPORTED;
    set->types[call.d->gpu] |= types;
    return OK;
}
static int take_xid(const Scenario *s, EventSet *set, Event *out) {
    const Xid *oldest = NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < s->xid_count; i++) {
        const Xid *x = &s->xids[i];
        if (x->seq > set->seen[x->gpu] && (set->types[x->gpu] & EVENT_XID) && (!oldest || x->seq < oldest->seq))
            oldest = x;
    }
    if (oldest) {
        set->seen[oldest->gpu] = oldest->seq;
        if (oldest->seq > delivered[oldest->gpu]) delivered[oldest->gpu] = oldest->seq;
    }
    pthread_mutex_unlock(&lock);
    if (oldest) *out = (Event){handle_of(oldest->gpu, -1), EVENT_XID, oldest->code, NO_INSTANCE, NO_INSTANCE};
    return oldest != NULL;
}
/* Each look at the scenario wakes a thread and costs time; the real driver blocks. Benchmarks look less often. */
static u64 poll_ns(void) {
    const char *ms = getenv("FAKE_NVML_EVENT_POLL_MS");
    return (ms ? (u64)atoi(ms) : 100u) * 1000000u;
}
static int wait_event(Call *c, EventSet *set, u32 timeout_ms, Event *out) {
    u64 until_ns = monotonic_ns() + (u64)timeout_ms * 1000000u;
    while (!take_xid(c->s, set, out)) {
        u64 now = monotonic_ns();
        if (now >= until_ns) return TIMEOUT;
        u64 pause_ns = until_ns - now < poll_ns() ? until_ns - now : poll_ns();
        sleep_us((long)(pause_ns / 1000u) + 1);
        release(c->s);
        c->s = acquire();
        if (!initialised) return UNINITIALIZED;
    }
    return OK;
}
EXPORT int nvmlEventSetWait_v2(EventSet *set, Event *out, u32 timeout_ms) {
    SYSTEM_CALL;
    return wait_event(&call, set, timeout_ms, out);
}
EXPORT int nvmlEventSetWait(EventSet *set, void *out, u32 timeout_ms) { /* the old event ends before the instances */
    SYSTEM_CALL;
    Event event;
    int code = wait_event(&call, set, timeout_ms, &event);
    if (!code) memcpy(out, &event, offsetof(Event, gi));
    return code;
}

/* ---------------------------------------------------------------- 3. not modelled */

/* The arguments are not looked at, so one signature serves every symbol. */
#define ABSENT(function) EXPORT int function(void) { SYSTEM_CALL; return NOT_SUPPORTED; }
ABSENT(nvmlComputeInstanceDestroy) ABSENT(nvmlComputeInstanceGetInfo_v2) ABSENT(nvmlDeviceClearAccountingPids)
ABSENT(nvmlDeviceClearCpuAffinity) ABSENT(nvmlDeviceClearEccErrorCounts) ABSENT(nvmlDeviceClearFieldValues)
ABSENT(nvmlDeviceCreateGpuInstance) ABSENT(nvmlDeviceCreateGpuInstanceWithPlacement) ABSENT(nvmlDeviceDiscoverGpus)
ABSENT(nvmlDeviceFreezeNvLinkUtilizationCounter) ABSENT(nvmlDeviceGetAPIRestriction) ABSENT(nvmlDeviceGetActiveVgpus)
ABSENT(nvmlDeviceGetAdaptiveClockInfoStatus) ABSENT(nvmlDeviceGetAdaptiveTgpModeInfo_v1)
ABSENT(nvmlDeviceGetAddressingMode) ABSENT(nvmlDeviceGetAutoBoostedClocksEnabled) ABSENT(nvmlDeviceGetBBXTimeData_v1)
ABSENT(nvmlDeviceGetBankRemapperStatus_v1) ABSENT(nvmlDeviceGetBridgeChipInfo) ABSENT(nvmlDeviceGetBusType)
ABSENT(nvmlDeviceGetC2cModeInfoV) ABSENT(nvmlDeviceGetCapabilities) ABSENT(nvmlDeviceGetClkMonStatus)
ABSENT(nvmlDeviceGetClockOffsets) ABSENT(nvmlDeviceGetConfComputeGpuAttestationReport)
ABSENT(nvmlDeviceGetConfComputeGpuCertificate) ABSENT(nvmlDeviceGetConfComputeMemSizeInfo)
ABSENT(nvmlDeviceGetConfComputeProtectedMemoryUsage) ABSENT(nvmlDeviceGetCoolerInfo) ABSENT(nvmlDeviceGetCpuAffinity)
ABSENT(nvmlDeviceGetCpuAffinityWithinScope) ABSENT(nvmlDeviceGetCreatableVgpus) ABSENT(nvmlDeviceGetCurrentClockFreqs)
ABSENT(nvmlDeviceGetDetailedEccErrors) ABSENT(nvmlDeviceGetDramEncryptionMode) ABSENT(nvmlDeviceGetDriverModel)
ABSENT(nvmlDeviceGetDriverModel_v2) ABSENT(nvmlDeviceGetDynamicPstatesInfo) ABSENT(nvmlDeviceGetEncoderCapacity)
ABSENT(nvmlDeviceGetEncoderSessions) ABSENT(nvmlDeviceGetEncoderStats) ABSENT(nvmlDeviceGetFBCSessions)
ABSENT(nvmlDeviceGetFBCStats) ABSENT(nvmlDeviceGetFanControlPolicy_v2) ABSENT(nvmlDeviceGetGpcClkMinMaxVfOffset)
ABSENT(nvmlDeviceGetGpcClkVfOffset) ABSENT(nvmlDeviceGetGpuFabricInfo)
ABSENT(nvmlDeviceGetGpuFabricInfo_v4) ABSENT(nvmlDeviceGetGpuInstancePossiblePlacements_v2)
ABSENT(nvmlDeviceGetGpuInstanceProfileInfoByIdV) ABSENT(nvmlDeviceGetGpuInstanceRemainingCapacity)
ABSENT(nvmlDeviceGetGpuInstances) ABSENT(nvmlDeviceGetGpuOperationMode)
ABSENT(nvmlDeviceGetGspFirmwareMode) ABSENT(nvmlDeviceGetGspFirmwareVersion) ABSENT(nvmlDeviceGetHostVgpuMode)
ABSENT(nvmlDeviceGetHostname_v1) ABSENT(nvmlDeviceGetInforomConfigurationChecksum)
ABSENT(nvmlDeviceGetInforomImageVersion) ABSENT(nvmlDeviceGetInforomVersion) ABSENT(nvmlDeviceGetIrqNum)
ABSENT(nvmlDeviceGetLastBBXFlushTime) ABSENT(nvmlDeviceGetMemClkMinMaxVfOffset) ABSENT(nvmlDeviceGetMemClkVfOffset)
ABSENT(nvmlDeviceGetMemoryAffinity) ABSENT(nvmlDeviceGetMemoryLimits_v1) ABSENT(nvmlDeviceGetMinMaxClockOfPState)
ABSENT(nvmlDeviceGetMinMaxFanSpeed) ABSENT(nvmlDeviceGetNvLinkInfo) ABSENT(nvmlDeviceGetNvLinkTelemetrySamples_v1)
ABSENT(nvmlDeviceGetNvLinkUtilizationControl) ABSENT(nvmlDeviceGetNvLinkUtilizationCounter)
ABSENT(nvmlDeviceGetNvlinkBwMode) ABSENT(nvmlDeviceGetNvlinkSupportedBwModes) ABSENT(nvmlDeviceGetP2PStatus)
ABSENT(nvmlDeviceGetPcieLinkMaxSpeed) ABSENT(nvmlDeviceGetPdi) ABSENT(nvmlDeviceGetPerformanceModes)
ABSENT(nvmlDeviceGetPgpuMetadataString) ABSENT(nvmlDeviceGetPlatformInfo) ABSENT(nvmlDeviceGetPowerMizerMode_v1)
ABSENT(nvmlDeviceGetPowerSource) ABSENT(nvmlDeviceGetRemappedRows_v2) ABSENT(nvmlDeviceGetRepairStatus)
ABSENT(nvmlDeviceGetRetiredPages_v2)
ABSENT(nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts) ABSENT(nvmlDeviceGetSupportedGraphicsClocks)
ABSENT(nvmlDeviceGetSupportedMemoryClocks) ABSENT(nvmlDeviceGetSupportedPerformanceStates)
ABSENT(nvmlDeviceGetSupportedVgpus) ABSENT(nvmlDeviceGetTargetFanSpeed) ABSENT(nvmlDeviceGetThermalSettings)
ABSENT(nvmlDeviceGetTopologyCommonAncestor) ABSENT(nvmlDeviceGetTopologyNearestGpus)
ABSENT(nvmlDeviceGetVgpuCapabilities)
ABSENT(nvmlDeviceGetVgpuHeterogeneousMode) ABSENT(nvmlDeviceGetVgpuInstancesUtilizationInfo)
ABSENT(nvmlDeviceGetVgpuMetadata) ABSENT(nvmlDeviceGetVgpuProcessUtilization)
ABSENT(nvmlDeviceGetVgpuProcessesUtilizationInfo) ABSENT(nvmlDeviceGetVgpuSchedulerCapabilities)
ABSENT(nvmlDeviceGetVgpuSchedulerLog) ABSENT(nvmlDeviceGetVgpuSchedulerLog_v2) ABSENT(nvmlDeviceGetVgpuSchedulerState)
ABSENT(nvmlDeviceGetVgpuSchedulerState_v2) ABSENT(nvmlDeviceGetVgpuTypeCreatablePlacements)
ABSENT(nvmlDeviceGetVgpuTypeSupportedPlacements) ABSENT(nvmlDeviceGetVgpuUtilization)
ABSENT(nvmlDeviceModifyDrainState) ABSENT(nvmlDeviceOnSameBoard) ABSENT(nvmlDevicePerfMetricsGetSamples_v1)
ABSENT(nvmlDevicePowerSmoothingActivatePresetProfile) ABSENT(nvmlDevicePowerSmoothingSetState)
ABSENT(nvmlDevicePowerSmoothingUpdatePresetProfileParam) ABSENT(nvmlDeviceQueryDrainState)
ABSENT(nvmlDeviceReadPRMCounters_v1) ABSENT(nvmlDeviceReadWritePRM_v1) ABSENT(nvmlDeviceRemoveGpu)
ABSENT(nvmlDeviceResetApplicationsClocks) ABSENT(nvmlDeviceResetGpuLockedClocks)
ABSENT(nvmlDeviceResetMemoryLockedClocks) ABSENT(nvmlDeviceResetNvLinkErrorCounters)
ABSENT(nvmlDeviceResetNvLinkUtilizationCounter) ABSENT(nvmlDeviceSetAPIRestriction)
ABSENT(nvmlDeviceSetAccountingMode) ABSENT(nvmlDeviceSetAdaptiveTgpMode_v1) ABSENT(nvmlDeviceSetApplicationsClocks)
ABSENT(nvmlDeviceSetAutoBoostedClocksEnabled) ABSENT(nvmlDeviceSetClockOffsets) ABSENT(nvmlDeviceSetComputeMode)
ABSENT(nvmlDeviceSetConfComputeUnprotectedMemSize) ABSENT(nvmlDeviceSetCpuAffinity)
ABSENT(nvmlDeviceSetDefaultAutoBoostedClocksEnabled) ABSENT(nvmlDeviceSetDefaultFanSpeed_v2)
ABSENT(nvmlDeviceSetDramEncryptionMode) ABSENT(nvmlDeviceSetDriverModel) ABSENT(nvmlDeviceSetEccMode)
ABSENT(nvmlDeviceSetFanControlPolicy) ABSENT(nvmlDeviceSetFanSpeed_v2) ABSENT(nvmlDeviceSetGpcClkVfOffset)
ABSENT(nvmlDeviceSetGpuLockedClocks) ABSENT(nvmlDeviceSetGpuOperationMode) ABSENT(nvmlDeviceSetHostname_v1)
ABSENT(nvmlDeviceSetMemClkVfOffset) ABSENT(nvmlDeviceSetMemoryLimits_v1) ABSENT(nvmlDeviceSetMemoryLockedClocks)
ABSENT(nvmlDeviceSetMigMode) ABSENT(nvmlDeviceSetNvLinkDeviceLowPowerThreshold)
ABSENT(nvmlDeviceSetNvLinkUtilizationControl) ABSENT(nvmlDeviceSetNvlinkBwMode)
ABSENT(nvmlDeviceSetNvlinkBwModeAsync_v1) ABSENT(nvmlDeviceSetPersistenceMode)
ABSENT(nvmlDeviceSetPowerManagementLimit) ABSENT(nvmlDeviceSetPowerManagementLimit_v2)
ABSENT(nvmlDeviceSetPowerMizerMode_v1) ABSENT(nvmlDeviceSetRusdSettings_v1) ABSENT(nvmlDeviceSetTemperatureThreshold)
ABSENT(nvmlDeviceSetVgpuCapabilities) ABSENT(nvmlDeviceSetVgpuHeterogeneousMode)
ABSENT(nvmlDeviceSetVgpuSchedulerState) ABSENT(nvmlDeviceSetVgpuSchedulerState_v2)
ABSENT(nvmlDeviceSetVirtualizationMode) ABSENT(nvmlDeviceValidateInforom) ABSENT(nvmlDeviceVgpuForceGspUnload)
ABSENT(nvmlDeviceWorkloadPowerProfileClearRequestedProfiles) ABSENT(nvmlDeviceWorkloadPowerProfileGetCurrentProfiles)
ABSENT(nvmlDeviceWorkloadPowerProfileGetProfilesInfo) ABSENT(nvmlDeviceWorkloadPowerProfileSetRequestedProfiles)
ABSENT(nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1) ABSENT(nvmlEventSetGetContextCount_v1)
ABSENT(nvmlEventSetGetContextData_v1) ABSENT(nvmlEventSetGetContextInfo_v1)
ABSENT(nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1) ABSENT(nvmlEventSetRegisterGpuOperationalEvents_v1)
ABSENT(nvmlEventSetWait_v3) ABSENT(nvmlGetExcludedDeviceInfoByIndex) ABSENT(nvmlGetVgpuCompatibility)
ABSENT(nvmlGetVgpuDriverCapabilities) ABSENT(nvmlGetVgpuVersion) ABSENT(nvmlGpmSetStreamingEnabled)
ABSENT(nvmlGpuInstanceCreateComputeInstance) ABSENT(nvmlGpuInstanceCreateComputeInstanceWithPlacement)
ABSENT(nvmlGpuInstanceDestroy) ABSENT(nvmlGpuInstanceGetActiveVgpus) ABSENT(nvmlGpuInstanceGetComputeInstanceById)
ABSENT(nvmlGpuInstanceGetComputeInstancePossiblePlacements) ABSENT(nvmlGpuInstanceGetComputeInstanceProfileInfo)
ABSENT(nvmlGpuInstanceGetComputeInstanceProfileInfoV) ABSENT(nvmlGpuInstanceGetComputeInstanceRemainingCapacity)
ABSENT(nvmlGpuInstanceGetComputeInstances) ABSENT(nvmlGpuInstanceGetCreatableVgpus)
ABSENT(nvmlGpuInstanceGetVgpuHeterogeneousMode) ABSENT(nvmlGpuInstanceGetVgpuSchedulerLog)
ABSENT(nvmlGpuInstanceGetVgpuSchedulerLog_v2) ABSENT(nvmlGpuInstanceGetVgpuSchedulerState)
ABSENT(nvmlGpuInstanceGetVgpuSchedulerState_v2) ABSENT(nvmlGpuInstanceGetVgpuTypeCreatablePlacements)
ABSENT(nvmlGpuInstanceSetVgpuHeterogeneousMode) ABSENT(nvmlGpuInstanceSetVgpuSchedulerState)
ABSENT(nvmlGpuInstanceSetVgpuSchedulerState_v2) ABSENT(nvmlSetVgpuVersion) ABSENT(nvmlSystemEventSetCreate)
ABSENT(nvmlSystemEventSetFree) ABSENT(nvmlSystemEventSetWait) ABSENT(nvmlSystemGetCPER_v1)
ABSENT(nvmlSystemGetConfComputeCapabilities) ABSENT(nvmlSystemGetConfComputeGpusReadyState)
ABSENT(nvmlSystemGetConfComputeKeyRotationThresholdInfo) ABSENT(nvmlSystemGetConfComputeSettings)
ABSENT(nvmlSystemGetConfComputeState) ABSENT(nvmlSystemGetDriverBranch) ABSENT(nvmlSystemGetHicVersion)
ABSENT(nvmlSystemGetNvlinkBwMode) ABSENT(nvmlSystemGetTopologyGpuSet) ABSENT(nvmlSystemRegisterEvents)
ABSENT(nvmlSystemSetConfComputeGpusReadyState) ABSENT(nvmlSystemSetConfComputeKeyRotationThresholdInfo)
ABSENT(nvmlSystemSetNvlinkBwMode) ABSENT(nvmlUnitGetDevices) ABSENT(nvmlUnitGetFanSpeedInfo)
ABSENT(nvmlUnitGetHandleByIndex) ABSENT(nvmlUnitGetLedState) ABSENT(nvmlUnitGetPsuInfo) ABSENT(nvmlUnitGetTemperature)
ABSENT(nvmlUnitGetUnitInfo) ABSENT(nvmlUnitSetLedState) ABSENT(nvmlVgpuInstanceClearAccountingPids)
ABSENT(nvmlVgpuInstanceGetAccountingMode) ABSENT(nvmlVgpuInstanceGetAccountingPids)
ABSENT(nvmlVgpuInstanceGetAccountingStats) ABSENT(nvmlVgpuInstanceGetEccMode)
ABSENT(nvmlVgpuInstanceGetEncoderCapacity) ABSENT(nvmlVgpuInstanceGetEncoderSessions)
ABSENT(nvmlVgpuInstanceGetEncoderStats) ABSENT(nvmlVgpuInstanceGetFBCSessions) ABSENT(nvmlVgpuInstanceGetFBCStats)
ABSENT(nvmlVgpuInstanceGetFbUsage) ABSENT(nvmlVgpuInstanceGetFrameRateLimit) ABSENT(nvmlVgpuInstanceGetGpuInstanceId)
ABSENT(nvmlVgpuInstanceGetGpuPciId) ABSENT(nvmlVgpuInstanceGetLicenseInfo_v2) ABSENT(nvmlVgpuInstanceGetLicenseStatus)
ABSENT(nvmlVgpuInstanceGetMdevUUID) ABSENT(nvmlVgpuInstanceGetMetadata) ABSENT(nvmlVgpuInstanceGetPlacementId)
ABSENT(nvmlVgpuInstanceGetRuntimeStateSize) ABSENT(nvmlVgpuInstanceGetType) ABSENT(nvmlVgpuInstanceGetUUID)
ABSENT(nvmlVgpuInstanceGetVmDriverVersion) ABSENT(nvmlVgpuInstanceGetVmID) ABSENT(nvmlVgpuInstanceSetEncoderCapacity)
ABSENT(nvmlVgpuTypeGetBAR1Info) ABSENT(nvmlVgpuTypeGetCapabilities) ABSENT(nvmlVgpuTypeGetClass)
ABSENT(nvmlVgpuTypeGetDeviceID) ABSENT(nvmlVgpuTypeGetFbReservation) ABSENT(nvmlVgpuTypeGetFrameRateLimit)
ABSENT(nvmlVgpuTypeGetFramebufferSize) ABSENT(nvmlVgpuTypeGetGpuInstanceProfileId) ABSENT(nvmlVgpuTypeGetGspHeapSize)
ABSENT(nvmlVgpuTypeGetLicense) ABSENT(nvmlVgpuTypeGetMaxInstances) ABSENT(nvmlVgpuTypeGetMaxInstancesPerGpuInstance)
ABSENT(nvmlVgpuTypeGetMaxInstancesPerVm) ABSENT(nvmlVgpuTypeGetName) ABSENT(nvmlVgpuTypeGetNumDisplayHeads)
ABSENT(nvmlVgpuTypeGetResolution)
