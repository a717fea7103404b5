// A CUDA driver and an NVRTC for tests without a GPU: memory is the host's, calls are counted and can be made to fail.
//
// One kernel computes: "scale" (const float* x, float* y, {uint count; float factor}). All others do nothing.
// Work is done at once, in the order of the calls.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Result;
enum { OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_HANDLE = 400 };
enum Kind { MEMORY, PINNED, STREAM, EVENT, MODULE, FUNCTION, GRAPH, NODE, EXEC, CONTEXT, KINDS };
static const char* const kNames[KINDS] = {"memory",   "pinned", "stream", "event", "module",
                                          "function", "graph",  "node",   "exec",  "context"};

typedef struct {
  uint64_t magic;
  int kind;
  int pad;
} Header;
#define MAGIC 0x11c0da11c0daULL
#define PRIMARY ((void*)0x1000)
#define MAX_DEPTH 16

static long g_live[KINDS];
static long g_calls, g_fail_at, g_uses;
static int g_fail_code, g_retained;
static char g_problem[256];
static _Thread_local void* g_stack[MAX_DEPTH];
static _Thread_local int g_depth;

static void problem(const char* function, const char* what) {
  if (g_problem[0] == '\0') snprintf(g_problem, sizeof(g_problem), "%s: %s", function, what);
}
static void* make(enum Kind kind, size_t size) {
  Header* header = calloc(1, sizeof(Header) + size);
  header->magic = MAGIC;
  header->kind = kind;
  g_live[kind]++;
  return header + 1;
}
static int is(void* object, enum Kind kind, const char* function) {
  Header* header = (Header*)object - 1;
  if (object != NULL && header->magic == MAGIC && header->kind == (int)kind) return 1;
  problem(function, "not a live object");
  return 0;
}
static Result drop(void* object, enum Kind kind, const char* function) {
  if (!is(object, kind, function)) return INVALID_HANDLE;
  ((Header*)object - 1)->magic = 0;  // kept, so that a second use is noticed
  g_live[kind]--;
  return 0;
}
static int has_context(void) { return g_depth > 0 && g_stack[g_depth - 1] == PRIMARY; }
static void need_context(const char* function) {
  if (!has_context()) problem(function, "another context is current");
}
// What this call returns when it is its turn to fail.
static Result turn(void) {
  g_calls++;
  return g_calls == g_fail_at ? g_fail_code : 0;
}
#define BEGIN             \
  Result failed = turn(); \
  if (failed != 0) return failed
#define BEGIN_IN_CONTEXT  \
  need_context(__func__); \
  BEGIN
// Waiting elsewhere is only refused.
#define BEGIN_WAITING                         \
  if (!has_context()) return INVALID_CONTEXT; \
  BEGIN

// For the tests.
void fake_fail(long at, int code) {
  g_calls = 0;
  g_fail_at = at;
  g_fail_code = code;
}
long fake_calls(void) { return g_calls; }
long fake_uses(void) { return g_uses; }  // cuInit
const char* fake_problem(void) { return g_problem; }
const char* fake_live(void) {
  static char text[256];
  text[0] = '\0';
  for (int kind = 0; kind < KINDS; kind++) {
    if (g_live[kind] == 0 || kind == FUNCTION || kind == NODE) continue;
    snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s %ld ", kNames[kind], g_live[kind]);
  }
  if (g_retained != 0) snprintf(text + strlen(text), sizeof(text) - strlen(text), "retained %d", g_retained);
  return text;
}
void* fake_current(void) { return g_depth == 0 ? NULL : g_stack[g_depth - 1]; }
void fake_push(void* context) { g_stack[g_depth++] = context; }

Result cuInit(unsigned flags) {
  (void)flags;
  g_uses++;
  const char* code = getenv("FAKE_CUDA_INIT");
  return code == NULL ? 0 : atoi(code);
}
Result cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
Result cuGetErrorName(Result result, const char** name) {
  *name = result == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_FAKE";
  return 0;
}
Result cuGetErrorString(Result result, const char** text) {
  (void)result;
  *text = "made to fail";
  return 0;
}
Result cuDeviceGetCount(int* count) {
  BEGIN;
  const char* given = getenv("FAKE_CUDA_GPUS");
  *count = given == NULL ? 1 : atoi(given);
  return 0;
}
Result cuDeviceGet(int* device, int ordinal) {
  BEGIN;
  *device = ordinal;
  return 0;
}
Result cuDeviceGetName(char* name, int length, int device) {
  (void)device;
  BEGIN;
  snprintf(name, (size_t)length, "Fake GPU");
  return 0;
}
Result cuDeviceGetAttribute(int* value, int attribute, int device) {
  (void)device;
  BEGIN;
  const char* major = getenv("FAKE_CUDA_MAJOR");
  *value = attribute == 75 ? (major == NULL ? 9 : atoi(major)) : 0;
  return 0;
}
Result cuDevicePrimaryCtxRetain(void** context, int device) {
  (void)device;
  BEGIN;
  *context = PRIMARY;
  g_retained++;
  return 0;
}
Result cuDevicePrimaryCtxRelease_v2(int device) {
  (void)device;
  g_retained--;
  return 0;
}
Result cuCtxPushCurrent_v2(void* context) {
  BEGIN;
  if (g_depth == MAX_DEPTH)
    problem(__func__, "too deep");
  else
    g_stack[g_depth++] = context;
  return 0;
}
Result cuCtxPopCurrent_v2(void** context) {
  if (g_depth == 0) {
    problem(__func__, "nothing to pop");
    return INVALID_CONTEXT;
  }
  *context = g_stack[--g_depth];
  if (*context != PRIMARY) problem(__func__, "another library's context");
  return 0;
}
Result cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  *free_bytes = 1000;
  *total = 2000;
  return 0;
}
Result cuMemAlloc_v2(uint64_t* address, size_t size) {
  BEGIN_IN_CONTEXT;
  if (size > (size_t)1 << 36) return OUT_OF_MEMORY;
  *address = (uint64_t)(uintptr_t)make(MEMORY, size);
  return 0;
}
Result cuMemFree_v2(uint64_t address) { return drop((void*)(uintptr_t)address, MEMORY, __func__); }
Result cuMemHostAlloc(void** data, size_t size, unsigned flags) {
  (void)flags;
  BEGIN_IN_CONTEXT;
  *data = make(PINNED, size);
  return 0;
}
Result cuMemFreeHost(void* data) { return drop(data, PINNED, __func__); }
Result cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t size, void* stream) {
  BEGIN_IN_CONTEXT;
  if (is(stream, STREAM, __func__)) memcpy((void*)(uintptr_t)to, from, size);
  return 0;
}
Result cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t size, void* stream) {
  BEGIN_IN_CONTEXT;
  if (is(stream, STREAM, __func__)) memcpy(to, (void*)(uintptr_t)from, size);
  return 0;
}
Result cuMemsetD8Async(uint64_t to, unsigned char value, size_t size, void* stream) {
  BEGIN_IN_CONTEXT;
  if (is(stream, STREAM, __func__)) memset((void*)(uintptr_t)to, value, size);
  return 0;
}
Result cuStreamCreate(void** stream, unsigned flags) {
  (void)flags;
  BEGIN_IN_CONTEXT;
  *stream = make(STREAM, 8);
  return 0;
}
Result cuStreamDestroy_v2(void* stream) { return drop(stream, STREAM, __func__); }
Result cuStreamSynchronize(void* stream) {
  BEGIN_WAITING;
  is(stream, STREAM, __func__);
  return 0;
}
Result cuEventCreate(void** event, unsigned flags) {
  (void)flags;
  BEGIN_IN_CONTEXT;
  *event = make(EVENT, 8);
  return 0;
}
Result cuEventDestroy_v2(void* event) { return drop(event, EVENT, __func__); }
Result cuEventRecord(void* event, void* stream) {
  BEGIN_IN_CONTEXT;
  is(event, EVENT, __func__);
  is(stream, STREAM, __func__);
  return 0;
}
Result cuEventQuery(void* event) {
  BEGIN_WAITING;
  is(event, EVENT, __func__);
  return 0;
}
Result cuEventSynchronize(void* event) {
  BEGIN_WAITING;
  is(event, EVENT, __func__);
  return 0;
}
Result cuEventElapsedTime(float* milliseconds, void* from, void* to) {
  BEGIN_WAITING;
  is(from, EVENT, __func__);
  is(to, EVENT, __func__);
  *milliseconds = 1.0f;
  return 0;
}
Result cuModuleLoadData(void** module, const void* image) {
  BEGIN_IN_CONTEXT;
  if (memcmp(image,
             "\x7f"
             "ELF",
             4) != 0)
    return 200;
  *module = make(MODULE, 8);
  return 0;
}
Result cuModuleUnload(void* module) { return drop(module, MODULE, __func__); }
Result cuModuleGetFunction(void** function, void* module, const char* name) {
  BEGIN_IN_CONTEXT;
  is(module, MODULE, __func__);
  *function = strcpy(make(FUNCTION, strlen(name) + 1), name);
  return 0;
}
Result cuFuncGetAttribute(int* value, int attribute, void* function) {
  (void)attribute;
  (void)function;
  *value = 0;
  return 0;
}

typedef struct {
  unsigned count;
  float factor;
} ScaleArguments;
static void run_scale(const float* x, float* y, ScaleArguments arguments) {
  for (unsigned i = 0; i < arguments.count; i++) y[i] = arguments.factor * x[i];
}
Result cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned x, unsigned y,
                      unsigned z, unsigned shared, void* stream, void** parameters, void** extra) {
  (void)grid_x, (void)grid_y, (void)grid_z, (void)x, (void)y, (void)z, (void)shared, (void)extra;
  BEGIN_IN_CONTEXT;
  is(stream, STREAM, __func__);
  if (is(function, FUNCTION, __func__) && strcmp(function, "scale") == 0) {
    run_scale(*(const float**)parameters[0], *(float**)parameters[1], *(ScaleArguments*)parameters[2]);
  }
  return 0;
}

typedef struct {
  void* function;
  unsigned grid[3], block[3], shared;
  void** parameters;
  void** extra;
} NodeParameters;
typedef struct Node {
  const float* x;
  float* y;
  ScaleArguments arguments;
  int computes;
  struct Node* next;  // in the order in which they were added
} Node;
typedef struct {
  Node* first;
} Graph;
static Result set_node(Node* node, const NodeParameters* given, const char* function) {
  if (!is(given->function, FUNCTION, function)) return INVALID_HANDLE;
  node->computes = strcmp(given->function, "scale") == 0;
  if (!node->computes) return 0;
  node->x = *(const float**)given->parameters[0];
  node->y = *(float**)given->parameters[1];
  node->arguments = *(ScaleArguments*)given->parameters[2];
  return 0;
}
Result cuGraphCreate(void** graph, unsigned flags) {
  (void)flags;
  BEGIN_IN_CONTEXT;
  *graph = make(GRAPH, sizeof(Graph));
  return 0;
}
Result cuGraphDestroy(void* graph) { return drop(graph, GRAPH, __func__); }
Result cuGraphAddKernelNode_v2(void** node, void* graph, void* const* after, size_t count,
                               const NodeParameters* given) {
  (void)after, (void)count;
  BEGIN_IN_CONTEXT;
  if (!is(graph, GRAPH, __func__)) return INVALID_HANDLE;
  Node* made = make(NODE, sizeof(Node));
  Node** end = &((Graph*)graph)->first;
  while (*end != NULL) end = &(*end)->next;
  *end = made;
  *node = made;
  return set_node(made, given, __func__);
}
Result cuGraphAddDependencies(void* graph, void* const* from, void* const* to, size_t count) {
  BEGIN_IN_CONTEXT;
  is(graph, GRAPH, __func__);
  for (size_t i = 0; i < count; i++) is(from[i], NODE, __func__), is(to[i], NODE, __func__);
  return 0;
}
Result cuGraphInstantiateWithFlags(void** exec, void* graph, unsigned long long flags) {
  (void)flags;
  BEGIN_IN_CONTEXT;
  if (!is(graph, GRAPH, __func__)) return INVALID_HANDLE;
  *exec = make(EXEC, sizeof(Graph));
  ((Graph*)*exec)->first = ((Graph*)graph)->first;
  return 0;
}
Result cuGraphExecDestroy(void* exec) { return drop(exec, EXEC, __func__); }
Result cuGraphExecKernelNodeSetParams_v2(void* exec, void* node, const NodeParameters* given) {
  BEGIN_IN_CONTEXT;
  if (!is(exec, EXEC, __func__) || !is(node, NODE, __func__)) return INVALID_HANDLE;
  return set_node(node, given, __func__);
}
Result cuGraphLaunch(void* exec, void* stream) {
  BEGIN_IN_CONTEXT;
  is(stream, STREAM, __func__);
  if (!is(exec, EXEC, __func__)) return INVALID_HANDLE;
  for (Node* node = ((Graph*)exec)->first; node != NULL; node = node->next) {
    if (node->computes) run_scale(node->x, node->y, node->arguments);
  }
  return 0;
}

// NVRTC: "machine code" is what the driver above takes for it.
static long g_compiled;
long fake_compiled(void) { return g_compiled; }
Result nvrtcVersion(int* major, int* minor) {
  *major = 13, *minor = 0;
  return 0;
}
const char* nvrtcGetErrorString(Result result) {
  (void)result;
  return "NVRTC_ERROR_FAKE";
}
Result nvrtcCreateProgram(void** program, const char* source, const char* name, int count, const char* const* headers,
                          const char* const* names) {
  (void)source, (void)name, (void)count, (void)headers, (void)names;
  *program = malloc(8);
  return 0;
}
Result nvrtcDestroyProgram(void** program) {
  free(*program);
  return 0;
}
Result nvrtcCompileProgram(void* program, int count, const char* const* options) {
  (void)program, (void)count, (void)options;
  __atomic_add_fetch(&g_compiled, 1, __ATOMIC_RELAXED);
  return 0;
}
Result nvrtcGetCUBINSize(void* program, size_t* size) {
  (void)program;
  *size = 100;
  return 0;
}
Result nvrtcGetCUBIN(void* program, char* code) {
  (void)program;
  memset(code, 7, 100);
  memcpy(code,
         "\x7f"
         "ELF",
         4);
  return 0;
}
Result nvrtcGetProgramLogSize(void* program, size_t* size) {
  (void)program;
  *size = 1;
  return 0;
}
Result nvrtcGetProgramLog(void* program, char* log) {
  (void)program;
  log[0] = '\0';
  return 0;
}
