/* What a scenario file says, as the functions of nvml.c see it. The grammar is in README.md.
 *
 * A scenario is immutable once loaded and counted by reference, so a call in progress keeps the
 * one it began with while a test replaces the file. */
#ifndef SCENARIO_H
#define SCENARIO_H
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t u64;
typedef unsigned int u32;
typedef void *Handle;

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15, VERSION_MISMATCH = 25,
};
enum { MAX_GPUS = 64, MAX_MIGS = 16, NO_INSTANCE = 0xFFFFFFFF };

/* Every key of a gpu or mig line: T text or N number, and what it is when the line leaves it out.
 * NULL means derived in code (see number() and text()). Any of them may be `none`: NOT_SUPPORTED. */
#define KEYS(X) \
    X(uuid, T, NULL) X(name, T, NULL) X(bus, T, NULL) X(minor, N, NULL) X(serial, T, NULL) \
    X(vbios, T, "96.00.99.00.01") X(part, T, "692-2G520-0200-000") X(brand, N, "14") X(board_id, N, NULL) \
    X(pci_device, N, "0x233510DE") X(pci_subsystem, N, "0x18BE10DE") \
    X(architecture, T, "hopper") X(compute_capability, T, "9.0") X(cores, N, "16896") X(module_id, N, NULL) \
    X(numa_node, N, "0") \
    X(memory_total, N, NULL) X(memory_used, N, NULL) X(memory_reserved, N, NULL) \
    X(bar1_total, N, "274877906944") X(bar1_used, N, "2097152") X(memory_bus_width_bits, N, "6144") \
    X(util, N, NULL) X(memutil, N, NULL) X(enc, N, "0") X(dec, N, "0") X(jpg, N, "0") X(ofa, N, "0") \
    X(watts, N, "80") X(power_mw, N, NULL) X(power_instant_mw, N, NULL) X(power_limit_mw, N, "700000") \
    X(power_module_mw, N, "none") X(power_memory_mw, N, "36000") \
    X(power_smoothing, N, "none") X(power_default_mw, N, "700000") X(power_min_mw, N, "200000") X(power_max_mw, N, "700000") \
    X(energy_mj, N, "0") X(energy_at, N, NULL) \
    X(sm_clock_mhz, N, "1980") X(graphics_clock_mhz, N, "1980") X(memory_clock_mhz, N, "3201") \
    X(video_clock_mhz, N, "1545") X(sm_clock_max_mhz, N, "1980") X(graphics_clock_max_mhz, N, "1980") \
    X(memory_clock_max_mhz, N, "3201") X(video_clock_max_mhz, N, "1545") \
    X(temperature, N, "30") X(memory_temperature, N, "35") X(temperature_margin, N, "55") \
    X(temperature_shutdown, N, "92") X(temperature_slowdown, N, "89") X(temperature_memory_max, N, "95") \
    X(temperature_gpu_max, N, "87") X(fan, N, "none") X(fans, N, NULL) X(fan_rpm, N, "none") \
    X(throttle, N, "0") X(throttle_supported, N, "0x1FF") X(violation_power_ns, N, "0") \
    X(violation_thermal_ns, N, "0") X(pstate, N, "0") X(recovery_action, N, "0") \
    X(ecc, N, "1") X(ecc_corrected_volatile, N, "0") X(ecc_uncorrected_volatile, N, "0") \
    X(ecc_corrected_aggregate, N, "0") X(ecc_uncorrected_aggregate, N, "0") \
    X(retired_sbe, N, "none") X(retired_dbe, N, "none") X(retired_pending, N, "none") \
    X(remapped_correctable, N, "0") X(remapped_uncorrectable, N, "0") X(remapped_pending, N, "0") \
    X(remapped_failure, N, "0") X(remap_banks, N, "6144") X(unrepairable, N, "0") \
    X(sram_corrected, N, "0") X(sram_parity, N, "0") X(sram_secded, N, "0") X(sram_l2, N, "0") X(sram_exceeded, N, "0") \
    X(fabric_state, N, "0") X(fabric_status, N, "0") X(fabric_clique, N, "0") X(fabric_health, N, "0") \
    X(c2c_links, N, "none") X(c2c_down, N, "0") X(c2c_errors, N, "0") X(nvlink_version, N, "4") \
    X(pcie_replay, N, "0") X(pcie_gen, N, "5") X(pcie_gen_max, N, "5") X(pcie_width, N, "16") \
    X(pcie_width_max, N, "16") X(pcie_tx_kib_s, N, "0") X(pcie_rx_kib_s, N, "0") \
    X(nvlinks, N, "18") X(nvlink_tx_kib, N, "0") X(nvlink_rx_kib, N, "0") X(nvlink_errors, N, "0") \
    X(nvlink_mb_s, N, "26562") \
    X(persistence, N, "1") X(compute_mode, N, "0") X(display_mode, N, "0") X(display_active, N, "0") \
    X(gpm, N, "1") X(mig, N, "0") X(vgpu_license, N, "0") X(accounting, N, "0") X(accounting_buffer, N, "4000") \
    X(gi, N, NULL) X(ci, N, "0") X(profile, T, "1g.18gb") X(sms, N, "132")

#define AS_ENUM(key, kind, fallback) K_##key,
typedef enum { KEYS(AS_ENUM) K_COUNT } Key;


typedef struct { const char *name; u32 id; } GpmName;
extern const GpmName GPM[];
enum { GPM_COUNT = 17 };

typedef struct Device { /* a GPU, or a MIG device when parent is not NULL */
    int gpu, present, lost, firstlie, mig_count;
    const char *value[K_COUNT], *gpm[GPM_COUNT];
    const struct Device *parent;
    struct Device *migs; /* MAX_MIGS of them */
} Device;

typedef enum { COMPUTE, GRAPHICS, MPS } List;
typedef struct { int gpu; u32 pid; List list; u64 memory; u32 sm, mem, enc, dec, jpg, ofa, gi, ci;
    const char *name; } Process;
typedef struct { int gpu, always; u32 pid; u64 ts; u32 sm, mem, enc, dec; } Sample;
typedef struct { int gpu; u32 pid, gpu_util, mem_util, running, samples; u64 max_memory, time_ms, start_us; } Account;
typedef struct { int gpu; u64 code, seq; } Xid;
typedef enum { ERROR, LATENCY, HANG, MISSING, INSUFFICIENT } Effect;
typedef struct { Effect effect; const char *function; int gpu, code; long us; atomic_long left; } Rule;

typedef struct {
    atomic_int references;
    char *content; /* all strings point into it */
    int unloaded, h200_latency, gpu_count;
    double clock_s; /* frozen time, or < 0 */
    const char *version, *nvml_version, *cuda;
    Device gpus[MAX_GPUS];
    Process *processes; int process_count;
    Sample *samples; int sample_count;
    Account *accounts; int account_count;
    Xid *xids; int xid_count;
    Rule *rules; int rule_count;
} Scenario;

/* Guards the swap of scenarios and the delivery of events: a sleeping or hanging call never holds it. */
extern pthread_mutex_t lock;
extern u64 delivered[MAX_GPUS]; /* the highest XID seq handed out on each GPU; under lock */
extern atomic_int initialised; /* how many nvmlInit are open; a driver that goes away makes it 0 */

Scenario *acquire(void); /* the scenario as the file says now */
void release(Scenario *s);
u64 monotonic_ns(void);
u64 now_us(const Scenario *s); /* Unix time as the library tells it */
void sleep_us(long us);

/* The value of a key: OK, or NOT_SUPPORTED where the scenario says none. */
int number(const Scenario *s, const Device *d, Key key, u64 *out);
int number32(const Scenario *s, const Device *d, Key key, u32 *out);
int text(const Device *d, Key key, char *out, u32 size);
const char *given(const Device *d, Key key); /* as written, or the fallback, or NULL */
int copy(char *out, u32 size, const char *from);
u64 energy_mj(const Scenario *s, const Device *d);
int on_device(const Device *d, const Process *p);
int first_of_pid(const Scenario *s, const Device *d, int i); /* one pid may stand in several lists */

#endif
