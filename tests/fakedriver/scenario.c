/* Reads the scenario file, and works out what it leaves unsaid. */
#define _GNU_SOURCE
#include "scenario.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>

static const struct { const char *name; char kind; const char *fallback; } KEY[K_COUNT] = {
#define AS_ROW(key, kind, fallback) {#key, #kind[0], fallback},
    KEYS(AS_ROW)
};

const GpmName GPM[] = {
    {"graphics", 1}, {"sm", 2}, {"occupancy", 3}, {"integer", 4}, {"tensor", 5}, {"dfma", 6}, {"hmma", 7},
    {"dmma", 8}, {"imma", 9}, {"dram", 10}, {"fp64", 11}, {"fp32", 12}, {"fp16", 13}, {"pcie_tx", 20},
    {"pcie_rx", 21}, {"nvlink_rx", 60}, {"nvlink_tx", 61},
};
_Static_assert(sizeof GPM / sizeof *GPM == GPM_COUNT, "scenario.h counts the GPM names");

pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Scenario *current;
static struct stat loaded_stat;
static char loaded_path[4096];
u64 delivered[MAX_GPUS];
static u64 checked_ns;
atomic_int initialised;

u64 monotonic_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (u64)t.tv_sec * 1000000000u + (u64)t.tv_nsec;
}

/* The default timer slack adds 50 us to every sleep, as much as most real calls take. */
void sleep_us(long us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
    nanosleep(&t, NULL);
    prctl(PR_SET_TIMERSLACK, 0, 0, 0, 0);
}

void release(Scenario *s) {
    if (!s || atomic_fetch_sub(&s->references, 1) != 1) return;
    for (int i = 0; i < MAX_GPUS; i++) free(s->gpus[i].migs);
    free(s->processes); free(s->samples); free(s->accounts); free(s->xids); free(s->rules);
    free(s->content);
    free(s);
}

/* Cuts the next word off the line: spaces separate, double quotes hold spaces together. */
static char *next_word(char **line) {
    char *in = *line + strspn(*line, " \t"), *word = in, *out = in;
    if (!*in) return NULL;
    for (int quoted = 0; *in && (quoted || !strchr(" \t", *in)); in++) {
        if (*in == '"') quoted = !quoted;
        else *out++ = *in;
    }
    *line = *in ? in + 1 : in;
    *out = 0;
    return word;
}

static int is_number(const char *v) {
    char *end;
    strtod(v, &end);
    return end != v && !*end;
}

/* Integers keep all 64 bits; `290.5` and `1e9` are read as such too. */
static u64 to_u64(const char *v) {
    char *end;
    u64 whole = strtoull(v, &end, 0);
    return *end ? (u64)strtod(v, NULL) : whole;
}

static void *grow(void *array, int count, size_t size) { /* room for one more, zeroed */
    if (count % 32 == 0) array = realloc(array, (size_t)(count + 32) * size);
    memset((char *)array + (size_t)count * size, 0, size);
    return array;
}
#define APPEND(array, count) (array = grow(array, count, sizeof *array), &array[count++])

static int set_device(Device *d, const char *key, const char *value) {
    if (!strncmp(key, "gpm.", 4)) {
        for (int i = 0; i < GPM_COUNT; i++)
            if (!strcmp(GPM[i].name, key + 4)) {
                d->gpm[i] = value;
                return strcmp(value, "none") && !is_number(value);
            }
        return 1;
    }
    for (int i = 0; i < K_COUNT; i++)
        if (!strcmp(KEY[i].name, key)) {
            d->value[i] = value;
            return KEY[i].kind == 'N' && strcmp(value, "none") && !is_number(value);
        }
    return 1;
}

static int set_process(Process *p, const char *key, const char *value) {
    if (!strcmp(key, "name")) return p->name = value, 0;
    if (!strcmp(key, "kind")) {
        p->list = !strcmp(value, "graphics") ? GRAPHICS : !strcmp(value, "mps") ? MPS : COMPUTE;
        return p->list == COMPUTE && strcmp(value, "compute");
    }
    if (!strcmp(key, "memory") && !strcmp(value, "na")) return p->memory = ~0ull, 0;
    u64 n = to_u64(value);
    if (!strcmp(key, "pid")) p->pid = (u32)n;
    else if (!strcmp(key, "memory")) p->memory = n;
    else if (!strcmp(key, "sm")) p->sm = (u32)n;
    else if (!strcmp(key, "mem")) p->mem = (u32)n;
    else if (!strcmp(key, "enc")) p->enc = (u32)n;
    else if (!strcmp(key, "dec")) p->dec = (u32)n;
    else if (!strcmp(key, "jpg")) p->jpg = (u32)n;
    else if (!strcmp(key, "ofa")) p->ofa = (u32)n;
    else if (!strcmp(key, "gi")) p->gi = (u32)n;
    else if (!strcmp(key, "ci")) p->ci = (u32)n;
    else return 1;
    return !is_number(value);
}

static int set_sample(Sample *p, const char *key, const char *value) {
    u64 n = to_u64(value);
    if (!strcmp(key, "pid")) p->pid = (u32)n;
    else if (!strcmp(key, "ts")) p->ts = n;
    else if (!strcmp(key, "sm")) p->sm = (u32)n;
    else if (!strcmp(key, "mem")) p->mem = (u32)n;
    else if (!strcmp(key, "enc")) p->enc = (u32)n;
    else if (!strcmp(key, "dec")) p->dec = (u32)n;
    else if (!strcmp(key, "always")) p->always = (int)n;
    else return 1;
    return !is_number(value);
}

static int set_account(Account *a, const char *key, const char *value) {
    u64 n = to_u64(value);
    if (!strcmp(key, "pid")) a->pid = (u32)n;
    else if (!strcmp(key, "gpu")) a->gpu_util = (u32)n;
    else if (!strcmp(key, "mem")) a->mem_util = (u32)n;
    else if (!strcmp(key, "max_memory")) a->max_memory = n;
    else if (!strcmp(key, "time_ms")) a->time_ms = n;
    else if (!strcmp(key, "start_us")) a->start_us = n;
    else if (!strcmp(key, "running")) a->running = (u32)n;
    else if (!strcmp(key, "samples")) a->samples = (u32)n;
    else return 1;
    return !is_number(value);
}

static int set_xid(Xid *x, const char *key, const char *value) {
    if (!strcmp(key, "code")) x->code = to_u64(value);
    else if (!strcmp(key, "seq")) x->seq = to_u64(value);
    else return 1;
    return !is_number(value);
}

static int set_rule(Rule *r, const char *key, const char *value) {
    if (!strcmp(key, "gpu")) r->gpu = (int)to_u64(value);
    else if (!strcmp(key, "code")) r->code = (int)to_u64(value);
    else if (!strcmp(key, "us")) r->us = (long)to_u64(value);
    else if (!strcmp(key, "count")) r->left = (long)to_u64(value);
    else return 1;
    return !is_number(value);
}

static int set_driver(Scenario *s, const char *key, const char *value) {
    if (!strcmp(key, "version")) s->version = value;
    else if (!strcmp(key, "nvml")) s->nvml_version = value;
    else if (!strcmp(key, "cuda")) s->cuda = value;
    else return 1;
    return 0;
}

static const char *RULES[] = {"error", "latency", "hang", "missing", "insufficient"};

/* Returns NULL, or what is wrong with the line. */
static const char *parse_line(Scenario *s, char *line) {
    char *noun = next_word(&line), *word, *value;
    if (!noun || *noun == '#') return NULL;
    if (!strcmp(noun, "unloaded")) return s->unloaded = 1, NULL;
    int rule = -1;
    for (int i = 0; i < 5; i++)
        if (!strcmp(noun, RULES[i])) rule = i;
    char *subject = !strcmp(noun, "driver") ? NULL : next_word(&line);
    if (!subject && strcmp(noun, "driver")) return "a word is missing";
    if (!strcmp(noun, "clock")) {
        s->clock_s = strtod(subject, NULL);
        return is_number(subject) ? NULL : "not a time";
    }
    if (!strcmp(noun, "profile")) {
        s->h200_latency = !strcmp(subject, "h200");
        return s->h200_latency ? NULL : "unknown profile";
    }
    int gpu = subject && rule < 0 ? atoi(subject) : -1;
    if (subject && rule < 0 && (!is_number(subject) || gpu < 0 || gpu >= MAX_GPUS)) return "no such gpu number";
    Device *device = NULL;
    Process *process = NULL;
    Sample *sample = NULL;
    Account *account = NULL;
    Xid *xid = NULL;
    Rule *r = NULL;
    if (!strcmp(noun, "gpu")) {
        device = &s->gpus[gpu];
        device->gpu = gpu;
        device->present = 1;
        if (gpu >= s->gpu_count) s->gpu_count = gpu + 1;
    } else if (!strcmp(noun, "mig")) {
        Device *parent = &s->gpus[gpu];
        if (parent->mig_count == MAX_MIGS) return "too many MIG devices";
        if (!parent->migs) parent->migs = calloc(MAX_MIGS, sizeof *parent->migs);
        device = &parent->migs[parent->mig_count++];
        device->gpu = gpu;
        device->present = 1;
        device->parent = parent;
    } else if (!strcmp(noun, "process")) {
        process = APPEND(s->processes, s->process_count);
        process->gpu = gpu;
        process->gi = process->ci = NO_INSTANCE;
    } else if (!strcmp(noun, "sample")) {
        sample = APPEND(s->samples, s->sample_count);
        sample->gpu = gpu;
    } else if (!strcmp(noun, "accounting")) {
        account = APPEND(s->accounts, s->account_count);
        account->gpu = gpu;
    } else if (!strcmp(noun, "xid")) {
        xid = APPEND(s->xids, s->xid_count);
        xid->gpu = gpu;
        xid->seq = 1;
    } else if (rule >= 0) {
        r = APPEND(s->rules, s->rule_count);
        r->effect = (Effect)rule;
        r->function = subject;
        r->gpu = -1;
        r->left = -1;
        r->code = 999;
    } else if (!strcmp(noun, "lost")) {
        s->gpus[gpu].lost = 1;
    } else if (!strcmp(noun, "firstlie")) {
        s->gpus[gpu].firstlie = 1;
    } else if (strcmp(noun, "driver")) {
        return "unknown noun";
    }
    while ((word = next_word(&line)) && *word != '#') {
        if (!(value = strchr(word, '='))) return "expected key=value";
        *value++ = 0;
        int bad = device ? set_device(device, word, value) : process ? set_process(process, word, value)
                : sample ? set_sample(sample, word, value) : account ? set_account(account, word, value)
                : xid ? set_xid(xid, word, value) : r ? set_rule(r, word, value) : set_driver(s, word, value);
        if (bad) return value[-1] = '=', word;
    }
    return NULL;
}

static Scenario *load(const char *path) {
    Scenario *s = calloc(1, sizeof *s);
    s->references = 1;
    s->clock_s = -1;
    s->version = "580.159.04";
    s->nvml_version = "13.580.159.04";
    s->cuda = "13000";
    FILE *f = path ? fopen(path, "r") : NULL;
    size_t size = 0;
    if (!f || getdelim(&s->content, &size, 0, f) < 0) s->unloaded = !f;
    if (f) fclose(f);
    char *rest = s->content, *line;
    for (int number = 1; rest && (line = strsep(&rest, "\n")); number++) {
        const char *wrong = parse_line(s, line);
        if (!wrong) continue;
        /* A test with a typing error must not pass by accident: say it, and offer no driver at all. */
        fprintf(stderr, "fake nvml: %s:%d: %s\n", path, number, wrong);
        s->unloaded = 1;
    }
    return s;
}

/* The scenario as the file says now, looked at no more than once a millisecond. */
Scenario *acquire(void) {
    pthread_mutex_lock(&lock);
    u64 now = monotonic_ns();
    if (!current || now - checked_ns > 1000000) {
        const char *path = getenv("FAKE_NVML_SCENARIO");
        struct stat st = {0};
        if (!path || stat(path, &st)) memset(&st, 0, sizeof st);
        checked_ns = now;
        if (!current || st.st_ino != loaded_stat.st_ino || st.st_size != loaded_stat.st_size ||
            memcmp(&st.st_mtim, &loaded_stat.st_mtim, sizeof st.st_mtim) ||
            memcmp(&st.st_ctim, &loaded_stat.st_ctim, sizeof st.st_ctim)) {
            Scenario *fresh = load(path);
            release(current);
            current = fresh;
            loaded_stat = st;
            if (strcmp(loaded_path, path ? path : "")) { /* another test in the same process */
                snprintf(loaded_path, sizeof loaded_path, "%s", path ? path : "");
                memset(delivered, 0, sizeof delivered);
            }
            /* A driver that went away takes every client's session with it. */
            if (fresh->unloaded) initialised = 0;
        }
    }
    Scenario *s = current;
    s->references++;
    pthread_mutex_unlock(&lock);
    return s;
}

u64 now_us(const Scenario *s) {
    if (s->clock_s >= 0) return (u64)(s->clock_s * 1e6 + 0.5);
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (u64)t.tv_sec * 1000000u + (u64)t.tv_nsec / 1000u;
}

const char *given(const Device *d, Key key) {
    const char *v = d->value[key];
    return v ? v : KEY[key].fallback;
}

/* With MIG on, a parent shows the processes of all its instances and an instance its own. */
int on_device(const Device *d, const Process *p) {
    if (p->gpu != d->gpu) return 0;
    if (!d->parent) return 1;
    const char *gi = given(d, K_gi);
    return p->gi == (gi ? to_u64(gi) : 0) && (p->ci == NO_INSTANCE || p->ci == to_u64(given(d, K_ci)));
}

int first_of_pid(const Scenario *s, const Device *d, int i) {
    for (int j = 0; j < i; j++)
        if (s->processes[j].pid == s->processes[i].pid && on_device(d, &s->processes[j])) return 0;
    return 1;
}

/* What a number is when the scenario does not say. */
static int derived(const Scenario *s, const Device *d, Key key, u64 *out) {
    u64 sum = 0;
    switch ((int)key) {
    case K_gi: case K_minor: case K_module_id: *out = (u64)d->gpu; return OK;
    case K_board_id: *out = 0x1800u + 0x100u * (u64)d->gpu; return OK;
    case K_memory_total: *out = d->parent ? 18790481920u : 150754820096u; return OK;
    case K_memory_reserved: *out = d->parent ? 0 : 644939776u; return OK; /* H200, idle, v2 call */
    case K_memory_used:
        for (int i = 0; i < s->process_count; i++)
            if (on_device(d, &s->processes[i]) && s->processes[i].memory != ~0ull && first_of_pid(s, d, i))
                sum += s->processes[i].memory;
        *out = sum;
        return OK;
    case K_util: case K_memutil:
        for (int i = 0; i < s->process_count; i++)
            if (on_device(d, &s->processes[i]) && first_of_pid(s, d, i))
                sum += key == K_util ? s->processes[i].sm : s->processes[i].mem;
        *out = sum > 100 ? 100 : sum;
        return OK;
    case K_power_mw: *out = (u64)(strtod(given(d, K_watts), NULL) * 1000); return OK;
    case K_power_instant_mw:
        if (d->value[K_power_mw]) return *out = to_u64(d->value[K_power_mw]), OK;
        return derived(s, d, K_power_mw, out);
    }
    return NOT_SUPPORTED;
}

int number(const Scenario *s, const Device *d, Key key, u64 *out) {
    const char *v = given(d, key);
    if (!v) return derived(s, d, key, out);
    if (!strcmp(v, "none")) return NOT_SUPPORTED;
    *out = to_u64(v);
    return OK;
}

int number32(const Scenario *s, const Device *d, Key key, u32 *out) {
    u64 wide;
    int code = number(s, d, key, &wide);
    if (!code) *out = (u32)wide;
    return code;
}

int copy(char *out, u32 size, const char *text) {
    if (strlen(text) + 1 > size) return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}

int text(const Device *d, Key key, char *out, u32 size) {
    const char *v = given(d, key);
    char made[96];
    if (v && !strcmp(v, "none")) return NOT_SUPPORTED;
    if (v) return copy(out, size, v);
    int g = d->gpu, m = d->parent ? (int)(d - d->parent->migs) : 0;
    if (key == K_uuid && d->parent) snprintf(made, sizeof made, "MIG-%08x-0000-4000-8000-%012x", g, m);
    else if (key == K_uuid) snprintf(made, sizeof made, "GPU-%08x-0000-4000-8000-%012x", g, g);
    else if (key == K_bus) snprintf(made, sizeof made, "00000000:%02X:00.0", 0x18 + g);
    else if (key == K_serial) snprintf(made, sizeof made, "16539230%05d", g);
    else if (key == K_name && d->parent) {
        if (!d->parent->value[K_name]) snprintf(made, sizeof made, "NVIDIA H200 MIG %s", given(d, K_profile));
        else snprintf(made, sizeof made, "%.60s MIG %.30s", d->parent->value[K_name], given(d, K_profile));
    } else snprintf(made, sizeof made, "NVIDIA H200");
    return copy(out, size, made);
}

u64 energy_mj(const Scenario *s, const Device *d) {
    u64 now = now_us(s) / 100000 * 100000; /* the real counter moves every 100 ms */
    double at_us = d->value[K_energy_at] ? strtod(d->value[K_energy_at], NULL) * 1e6 : (double)now;
    double elapsed_us = (double)now - at_us;
    double risen = elapsed_us > 0 ? elapsed_us * strtod(given(d, K_watts), NULL) / 1000 : 0;
    return to_u64(given(d, K_energy_mj)) + (u64)(risen + 0.5);
}
