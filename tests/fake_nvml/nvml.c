/* A libnvidia-ml.so.1 whose answers stand in the table file that FAKE_NVML names, one fact a line:
 *   gpu INDEX BUS_ID SM PCIE_GENERATION WIDTH NAME…
 *   numa INDEX NODE   mig INDEX 1
 *   link INDEX LINK gpu BUS_ID | link INDEX LINK switch | link INDEX LINK off
 *   ancestor A B LEVEL   p2p A B STATUS   fabric INDEX STATE UUID_BYTE CLIQUE
 *   error FUNCTION CODE [INDEX]
 * What it does not say is not supported. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3 };
enum { MOST_LINES = 2000, LINE = 200, LINK_STATE_FIELD = 165 };

typedef struct { int index; } *Device;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char busId[32]; } PciInfo;
typedef struct {
    unsigned fieldId, scopeId; long long timestamp, latency; int valueType, nvmlReturn;
    union { double d; unsigned u; unsigned long long ull; } value;
} FieldValue;
typedef struct {
    unsigned version; unsigned char uuid[16]; int status; unsigned clique, state, health;
} FabricInfo;

static char lines[MOST_LINES][LINE];
static int nlines, started;

int nvmlInitWithFlags(unsigned flags) {
    const char *path = getenv("FAKE_NVML");
    FILE *table = path ? fopen(path, "r") : NULL;
    (void)flags;
    if (!table) return 9; /* driver not loaded */
    for (nlines = 0; nlines < MOST_LINES && fgets(lines[nlines], LINE, table); nlines++)
        lines[nlines][strcspn(lines[nlines], "\n")] = 0;
    fclose(table);
    started = 1;
    int code;
    for (int i = 0; i < nlines; i++)
        if (sscanf(lines[i], "error nvmlInit %d", &code) == 1) return code;
    return SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return started ? SUCCESS : UNINITIALIZED; }

static int failure(const char *function, int index) {
    char name[80];
    int code, at;
    if (!started) return UNINITIALIZED;
    for (int i = 0; i < nlines; i++) {
        at = -1;
        if (sscanf(lines[i], "error %79s %d %d", name, &code, &at) >= 2 && !strcmp(name, function) &&
            (at < 0 || at == index))
            return code;
    }
    return SUCCESS;
}

/* The n-th number after the first line that begins with `key`, or -1. */
static int number(const char *key, int n) {
    size_t length = strlen(key);
    for (int i = 0; i < nlines; i++)
        if (!strncmp(lines[i], key, length) && (lines[i][length] == ' ' || !lines[i][length])) {
            char copy[LINE], *word = strtok(strcpy(copy, lines[i] + length), " ");
            while (word && n--) word = strtok(NULL, " ");
            return word ? atoi(word) : -1;
        }
    return -1;
}
static int about(const char *what, Device device, int n) {
    char key[40];
    snprintf(key, sizeof key, "%s %d", what, device->index);
    return number(key, n);
}
static int about_pair(const char *what, Device one, Device other) {
    char key[40];
    int a = one->index < other->index ? one->index : other->index;
    snprintf(key, sizeof key, "%s %d %d", what, a, one->index + other->index - a);
    return number(key, 0);
}
static int gpu(Device device, char *bus, int *sm, int *generation, int *width, char *name) {
    int index;
    for (int i = 0; i < nlines; i++)
        if (sscanf(lines[i], "gpu %d %31s %d %d %d %95[^\n]", &index, bus, sm, generation, width, name) == 6 &&
            index == device->index)
            return 1;
    return 0;
}
static int link_words(Device device, unsigned link, char *kind, char *bus) {
    int index;
    unsigned at;
    for (int i = 0; i < nlines; i++) {
        *bus = 0;
        if (sscanf(lines[i], "link %d %u %15s %31s", &index, &at, kind, bus) >= 3 && index == device->index && at == link)
            return 1;
    }
    return 0;
}

#define ANSWER(name, device) { int code = failure(name, (device)->index); if (code) return code; }
#define OF_GPU \
    char bus[32], name[96]; int sm, generation, width; \
    if (!gpu(device, bus, &sm, &generation, &width, name)) return INVALID;

int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = failure("nvmlDeviceGetCount", 0);
    if (code) return code;
    *count = 0;
    for (int i = 0; i < nlines; i++) *count += !strncmp(lines[i], "gpu ", 4);
    return SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    static int devices[64];
    if (index >= 64) return INVALID;
    devices[index] = (int)index;
    *device = (Device)&devices[index];
    ANSWER("nvmlDeviceGetHandleByIndex", *device)
    return SUCCESS;
}
int nvmlDeviceGetName(Device device, char *out, unsigned length) {
    ANSWER("nvmlDeviceGetName", device) OF_GPU
    snprintf(out, length, "%s", name);
    return SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(Device device, PciInfo *info) {
    ANSWER("nvmlDeviceGetPciInfo", device) OF_GPU
    memset(info, 0, sizeof *info);
    snprintf(info->busId, sizeof info->busId, "%s", bus);
    return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    ANSWER("nvmlDeviceGetCudaComputeCapability", device) OF_GPU
    *major = sm / 10;
    *minor = sm % 10;
    return SUCCESS;
}
int nvmlDeviceGetMaxPcieLinkGeneration(Device device, unsigned *out) { OF_GPU *out = (unsigned)generation; return SUCCESS; }
int nvmlDeviceGetCurrPcieLinkGeneration(Device device, unsigned *out) { (void)device; *out = 1; return SUCCESS; }
int nvmlDeviceGetCurrPcieLinkWidth(Device device, unsigned *out) { OF_GPU *out = (unsigned)width; return SUCCESS; }
int nvmlDeviceGetMaxPcieLinkWidth(Device device, unsigned *out) {
    (void)device;
    *out = 16;
    return SUCCESS;
}
int nvmlDeviceGetNumaNodeId(Device device, int *node) {
    ANSWER("nvmlDeviceGetNumaNodeId", device)
    *node = about("numa", device, 0);
    return *node < 0 ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending) {
    ANSWER("nvmlDeviceGetMigMode", device)
    int mode = about("mig", device, 0);
    if (mode < 0) return NOT_SUPPORTED;
    *current = *pending = (unsigned)mode;
    return SUCCESS;
}
int nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *active) {
    char kind[16], bus[32];
    ANSWER("nvmlDeviceGetNvLinkState", device)
    if (!link_words(device, link, kind, bus)) return link < 6 ? NOT_SUPPORTED : INVALID;
    *active = strcmp(kind, "off") != 0;
    return SUCCESS;
}
int nvmlDeviceGetFieldValues(Device device, int count, FieldValue *values) {
    char kind[16], bus[32];
    ANSWER("nvmlDeviceGetFieldValues", device)
    for (int i = 0; i < count; i++) {
        int known = values[i].fieldId == LINK_STATE_FIELD && link_words(device, values[i].scopeId, kind, bus);
        values[i].nvmlReturn = known ? SUCCESS : INVALID;
        values[i].value.ull = 0;
        if (known) values[i].value.u = strcmp(kind, "off") != 0;
    }
    return SUCCESS;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned link, unsigned *type) {
    char kind[16], bus[32];
    ANSWER("nvmlDeviceGetNvLinkRemoteDeviceType", device)
    if (!link_words(device, link, kind, bus)) return INVALID;
    *type = strcmp(kind, "switch") ? 0 : 2;
    return SUCCESS;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned link, PciInfo *info) {
    char kind[16], bus[32];
    ANSWER("nvmlDeviceGetNvLinkRemotePciInfo", device)
    if (!link_words(device, link, kind, bus)) return INVALID;
    memset(info, 0, sizeof *info);
    snprintf(info->busId, sizeof info->busId, "%s", bus);
    return SUCCESS;
}
int nvmlDeviceGetTopologyCommonAncestor(Device one, Device other, unsigned *level) {
    ANSWER("nvmlDeviceGetTopologyCommonAncestor", one)
    int said = about_pair("ancestor", one, other);
    *level = said < 0 ? 50 : (unsigned)said;
    return SUCCESS;
}
int nvmlDeviceGetP2PStatus(Device one, Device other, unsigned index, unsigned *status) {
    ANSWER("nvmlDeviceGetP2PStatus", one)
    int said = about_pair("p2p", one, other);
    if (index != 0) return INVALID; /* only reading is asked for */
    *status = said < 0 ? 0 : (unsigned)said;
    return SUCCESS;
}
int nvmlDeviceGetGpuFabricInfoV(Device device, FabricInfo *info) {
    ANSWER("nvmlDeviceGetGpuFabricInfoV", device)
    int state = about("fabric", device, 0);
    if (state < 0) return NOT_SUPPORTED;
    info->state = (unsigned)state;
    info->status = SUCCESS;
    memset(info->uuid, about("fabric", device, 1), sizeof info->uuid);
    info->clique = (unsigned)about("fabric", device, 2);
    return SUCCESS;
}
const char *nvmlErrorString(int code) { return code == 999 ? "Unknown Error" : "Error"; }
