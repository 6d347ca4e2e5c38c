/* Calls NCCL as nccl-tests does, one process per rank, and compares every byte with what the collective must give.

   driver SCENARIO ranks=N [collective=all] [type=all] [op=all] [counts=1,5,1000] [mode=both] [root=0] [devices=1]

   Every rank prints {"rank", "checked", "wrong", "result"}, and where the stand-in is loaded what it was asked for. It
   uses the same calls on a GPU: NCCL from libnccl.so.2, memory and streams from libcuda.so.1. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "abi.h"

#define DECLARED(result, name, parameters) extern result name parameters;
NCCL_OVERRIDDEN(DECLARED)
NCCL_CALLED(DECLARED)
extern ncclResult_t ncclGetUniqueId(ncclUniqueId*);
extern ncclResult_t ncclCommGetUniqueId(ncclComm_t, ncclUniqueId*);
extern ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t*, void*, ncclDataType_t, int, ncclComm_t);
extern CUresult cuInit(unsigned);
extern CUresult cuDeviceGet(CUdevice*, int);
extern CUresult cuDevicePrimaryCtxRetain(CUcontext*, CUdevice);
extern CUresult cuCtxPushCurrent_v2(CUcontext);
extern CUresult cuMemAlloc_v2(CUdeviceptr*, size_t);
extern CUresult cuMemFree_v2(CUdeviceptr);
extern CUresult cuMemcpyAsync(CUdeviceptr, CUdeviceptr, size_t, cudaStream_t);
extern CUresult cuStreamCreate(cudaStream_t*, unsigned);
extern CUresult cuStreamSynchronize(cudaStream_t);
extern CUresult cuStreamQuery(cudaStream_t);
extern CUresult cuStreamBeginCapture_v2(cudaStream_t, int);
extern CUresult cuStreamEndCapture(cudaStream_t, void**);
extern CUresult cuGraphInstantiateWithFlags(void**, void*, unsigned long long);
extern CUresult cuGraphLaunch(void*, cudaStream_t);

enum { ALLGATHER, REDUCE_SCATTER, ALLREDUCE, ALLTOALL, BROADCAST, REDUCE, GATHER, SCATTER, COLLECTIVES };
static const char* const collective_names[] = {"allgather", "reduce_scatter", "allreduce", "alltoall",
                                               "broadcast", "reduce",         "gather",    "scatter"};
static const char* const type_names[] = {"int8", "uint8", "int32",  "uint32",   "int64",    "uint64",
                                         "half", "float", "double", "bfloat16", "fp8_e4m3", "fp8_e5m2"};
static const size_t type_bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
static const char* const op_names[] = {"sum", "prod", "max", "min", "avg"};
enum { TYPES = 12, OPS = 5, GUARD = 512 };

static struct {
  const char *scenario, *collective, *type, *op, *counts, *mode;
  int ranks, root, devices;
} asked = {"all", "all", "all", "all", "1,5,1000", "both", 4, 0, 16};

struct Common {
  volatile int ready, second_ready;
  ncclUniqueId id, second;
};
static struct Common* common;
static int rank;
static long checked, wrong;

#define CUDA(call)                                                                   \
  do {                                                                               \
    CUresult status_ = (call);                                                       \
    if (status_ != 0) {                                                              \
      fprintf(stderr, "rank %d: line %d: CUDA error %d\n", rank, __LINE__, status_); \
      exit(3);                                                                       \
    }                                                                                \
  } while (0)
#define NCCL(call)                                                                   \
  do {                                                                               \
    ncclResult_t status_ = (call);                                                   \
    if (status_ != ncclSuccess) {                                                    \
      fprintf(stderr, "rank %d: line %d: NCCL error %d\n", rank, __LINE__, status_); \
      exit(4);                                                                       \
    }                                                                                \
  } while (0)

/* -- small whole numbers in every type, exact under every operator ---------------------------------------------- */

static void store(unsigned char* at, int type, long value) {
  static const int exponent[] = {5, 8, 11, 8, 4, 5}, mantissa[] = {10, 23, 52, 7, 3, 2}; /* half … fp8_e5m2 */
  unsigned long long bits = (unsigned long long)value;
  if (type >= ncclFloat16) {
    const int e = exponent[type - ncclFloat16], m = mantissa[type - ncclFloat16];
    int power = 0;
    while (value >> (power + 1)) ++power;
    bits =
        value == 0
            ? 0
            : ((unsigned long long)(power + (1 << (e - 1)) - 1) << m) +
                  ((power <= m ? (unsigned long long)value << (m - power) : (unsigned long long)value >> (power - m)) -
                   (1ULL << m));
  }
  memcpy(at, &bits, type_bytes[type]);
}

/* Element `i` of rank `r`'s input. */
static long element(int collective, int op, int type, int r, size_t i, int ranks) {
  const unsigned long mixed = (unsigned long)r * 2654435761u + i * 40503u + (i >> 7);
  const long bit = (long)((mixed >> 5) & 1);
  if (collective != ALLREDUCE && collective != REDUCE && collective != REDUCE_SCATTER)
    return (long)((mixed >> 3) % (type >= ncclFloat8e4m3 ? 8 : 100));
  switch (op) {
    case ncclProd:
      return 1 + bit;
    case ncclMax:
    case ncclMin:
      return (long)((mixed >> 3) % 8);
    case ncclAvg:
      return bit * ranks;
    default:
      return bit;
  }
}

static long combined(int collective, int op, int type, size_t i, int ranks) {
  long result = element(collective, op, type, 0, i, ranks);
  for (int r = 1; r < ranks; ++r) {
    const long other = element(collective, op, type, r, i, ranks);
    switch (op) {
      case ncclProd:
        result *= other;
        break;
      case ncclMax:
        result = other > result ? other : result;
        break;
      case ncclMin:
        result = other < result ? other : result;
        break;
      default:
        result += other;
    }
  }
  return op == ncclAvg ? result / ranks : result;
}

static int shares_in(int collective) {
  return collective == REDUCE_SCATTER || collective == ALLTOALL || collective == SCATTER;
}
static int shares_out(int collective) {
  return collective == ALLGATHER || collective == ALLTOALL || collective == GATHER;
}

/* -- one call, prepared, made and checked ------------------------------------------------------------------------- */

struct Case {
  int collective, type, op, root, in_place, me, ranks, absent_output;
  size_t count, inputs, outputs;
  unsigned char *input, *output, *expected, *before; /* host */
  CUdeviceptr memory[2];                             /* with guards */
  size_t sizes[2];
  CUdeviceptr send, receive;
};

static void prepare(struct Case* c, cudaStream_t stream) {
  const size_t bytes = type_bytes[c->type];
  c->inputs = c->count * (shares_in(c->collective) ? c->ranks : 1);
  c->outputs = c->count * (shares_out(c->collective) ? c->ranks : 1);
  const int has_input = c->collective != SCATTER || c->me == c->root;
  c->absent_output = (c->collective == REDUCE || c->collective == GATHER) && c->me != c->root;
  size_t in_offset = 0, out_offset = 0;
  if (c->in_place) {
    if (c->collective == ALLGATHER || (c->collective == GATHER && !c->absent_output)) in_offset = c->me * c->count;
    if (c->collective == REDUCE_SCATTER || (c->collective == SCATTER && has_input)) out_offset = c->me * c->count;
  }
  const size_t larger = c->inputs > c->outputs ? c->inputs : c->outputs;
  c->sizes[0] = (c->in_place ? larger : c->inputs) * bytes;
  c->sizes[1] = c->in_place ? 0 : c->outputs * bytes;
  for (int k = 0; k < 2; ++k) CUDA(cuMemAlloc_v2(&c->memory[k], c->sizes[k] + 2 * GUARD));
  c->before = malloc(c->sizes[0] + 2 * GUARD);
  memset(c->before, 0x5A, c->sizes[0] + 2 * GUARD);
  for (size_t i = 0; i < c->inputs; ++i)
    store(c->before + GUARD + (in_offset + i) * bytes, c->type,
          element(c->collective, c->op, c->type, c->me, i, c->ranks));
  CUDA(cuMemcpyAsync(c->memory[0], (CUdeviceptr)c->before, c->sizes[0] + 2 * GUARD, stream));
  c->output = malloc(c->sizes[1] + 2 * GUARD);
  memset(c->output, 0x5A, c->sizes[1] + 2 * GUARD);
  CUDA(cuMemcpyAsync(c->memory[1], (CUdeviceptr)c->output, c->sizes[1] + 2 * GUARD, stream));
  c->send = c->memory[0] + GUARD + in_offset * bytes;
  c->receive = (c->in_place ? c->memory[0] : c->memory[1]) + GUARD + out_offset * bytes;
  /* What all of the memory must hold in the end: what it held before, but for the output. */
  unsigned char* whole = c->in_place ? c->before : c->output;
  const size_t size = c->sizes[c->in_place ? 0 : 1] + 2 * GUARD;
  c->expected = malloc(size);
  memcpy(c->expected, whole, size);
  for (size_t i = 0; i < c->outputs && !c->absent_output; ++i) {
    long value = 0;
    const size_t k = i % c->count;
    const int part = (int)(i / c->count);
    switch (c->collective) {
      case ALLGATHER:
      case GATHER:
        value = element(c->collective, c->op, c->type, part, k, c->ranks);
        break;
      case ALLTOALL:
        value = element(c->collective, c->op, c->type, part, c->me * c->count + k, c->ranks);
        break;
      case BROADCAST:
        value = element(c->collective, c->op, c->type, c->root, i, c->ranks);
        break;
      case SCATTER:
        value = element(c->collective, c->op, c->type, c->root, c->me * c->count + i, c->ranks);
        break;
      case REDUCE_SCATTER:
        value = combined(c->collective, c->op, c->type, c->me * c->count + i, c->ranks);
        break;
      default:
        value = combined(c->collective, c->op, c->type, i, c->ranks);
    }
    store(c->expected + GUARD + (out_offset + i) * bytes, c->type, value);
  }
  CUDA(cuStreamSynchronize(stream));
  if (!has_input && !c->in_place) c->send = 0; /* NCCL does not look at them */
  if (c->absent_output && !c->in_place) c->receive = 0;
}

static ncclResult_t call(const struct Case* c, ncclComm_t comm, cudaStream_t stream) {
  const void* send = (const void*)c->send;
  void* receive = (void*)c->receive;
  const ncclDataType_t type = (ncclDataType_t)c->type;
  const ncclRedOp_t op = (ncclRedOp_t)c->op;
  switch (c->collective) {
    case ALLGATHER:
      return ncclAllGather(send, receive, c->count, type, comm, stream);
    case REDUCE_SCATTER:
      return ncclReduceScatter(send, receive, c->count, type, op, comm, stream);
    case ALLREDUCE:
      return ncclAllReduce(send, receive, c->count, type, op, comm, stream);
    case ALLTOALL:
      return ncclAlltoAll(send, receive, c->count, type, comm, stream);
    case BROADCAST:
      return c->in_place ? ncclBcast(receive, c->count, type, c->root, comm, stream)
                         : ncclBroadcast(send, receive, c->count, type, c->root, comm, stream);
    case REDUCE:
      return ncclReduce(send, receive, c->count, type, op, c->root, comm, stream);
    case GATHER:
      return ncclGather(send, receive, c->count, type, c->root, comm, stream);
    default:
      return ncclScatter(send, receive, c->count, type, c->root, comm, stream);
  }
}

static void check(struct Case* c, cudaStream_t stream) {
  const size_t size[2] = {c->sizes[0] + 2 * GUARD, c->sizes[1] + 2 * GUARD};
  unsigned char* got[2];
  for (int k = 0; k < 2; ++k) {
    got[k] = malloc(size[k]);
    CUDA(cuMemcpyAsync((CUdeviceptr)got[k], c->memory[k], size[k], stream));
  }
  CUDA(cuStreamSynchronize(stream));
  /* Out of place the input is as it was. In place, reduce on others than the root may leave anything. */
  int bad = c->in_place ? 0 : memcmp(got[0], c->before, size[0]) != 0;
  const int k = c->in_place ? 0 : 1;
  const int free_output = c->absent_output && c->collective == REDUCE;
  bad |= free_output ? 0 : memcmp(got[k], c->expected, size[k]) != 0;
  ++checked;
  if (bad) {
    ++wrong;
    size_t at = 0;
    while (at < size[k] && got[k][at] == c->expected[at]) ++at;
    fprintf(stderr, "rank %d: %s %s %s of %zu %s: wrong, output first at byte %zd of %zu (0x%02x, not 0x%02x)\n", rank,
            collective_names[c->collective], type_names[c->type], op_names[c->op], c->count,
            c->in_place ? "in place" : "out of place", (ssize_t)at - GUARD, size[k] - 2 * GUARD,
            at < size[k] ? got[k][at] : 0, at < size[k] ? c->expected[at] : 0);
  }
  for (int i = 0; i < 2; ++i) {
    free(got[i]);
    CUDA(cuMemFree_v2(c->memory[i]));
  }
  free(c->before);
  free(c->output);
  free(c->expected);
}

static struct Case made(int collective, int type, int op, size_t count, int in_place, int me, int ranks) {
  struct Case c;
  memset(&c, 0, sizeof c);
  c.collective = collective, c.type = type, c.op = op, c.count = count, c.in_place = in_place, c.me = me,
  c.ranks = ranks;
  c.root = asked.root < ranks ? asked.root : 0;
  return c;
}

static int wanted(const char* list, const char* name) {
  if (strcmp(list, "all") == 0) return 1;
  const size_t length = strlen(name);
  for (const char* at = list; at != NULL; at = strchr(at, ',')) {
    at += *at == ',';
    if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == '\0')) return 1;
  }
  return 0;
}

static void sweep(ncclComm_t comm, cudaStream_t stream, int me, int ranks) {
  for (int collective = 0; collective < COLLECTIVES; ++collective) {
    if (!wanted(asked.collective, collective_names[collective])) continue;
    const int reducing = collective == ALLREDUCE || collective == REDUCE || collective == REDUCE_SCATTER;
    for (int type = 0; type < TYPES; ++type) {
      if (!wanted(asked.type, type_names[type])) continue;
      for (int op = 0; op < (reducing ? OPS : 1); ++op) {
        if (reducing && !wanted(asked.op, op_names[op])) continue;
        char counts[256];
        snprintf(counts, sizeof counts, "%s", asked.counts);
        for (char* word = strtok(counts, ","); word != NULL; word = strtok(NULL, ","))
          for (int in_place = 0; in_place < 2; ++in_place) {
            if ((in_place && (strcmp(asked.mode, "out") == 0 || collective == ALLTOALL)) ||
                (!in_place && strcmp(asked.mode, "in") == 0))
              continue;
            struct Case c = made(collective, type, op, strtoul(word, NULL, 10), in_place, me, ranks);
            prepare(&c, stream);
            NCCL(call(&c, comm, stream));
            check(&c, stream);
          }
      }
    }
  }
}

/* -- scenarios ---------------------------------------------------------------------------------------------------- */

static ncclComm_t world(void) {
  ncclComm_t comm;
  NCCL(ncclCommInitRank(&comm, asked.ranks, common->id, rank));
  return comm;
}

static cudaStream_t new_stream(void) {
  cudaStream_t stream;
  CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

static void leave(ncclComm_t comm) {
  NCCL(ncclCommFinalize(comm));
  NCCL(ncclCommDestroy(comm));
}

static void scenario_all(void) {
  ncclComm_t comm = world();
  sweep(comm, new_stream(), rank, asked.ranks);
  leave(comm);
}

static void scenario_null_stream(void) {
  ncclComm_t comm = world();
  sweep(comm, NULL, rank, asked.ranks);
  leave(comm);
}

/* Several calls in one (nested) group, on one communicator. */
static void scenario_group(void) {
  ncclComm_t comm = world();
  cudaStream_t stream = new_stream();
  struct Case cases[4] = {made(ALLGATHER, ncclFloat32, 0, 1000, 0, rank, asked.ranks),
                          made(ALLREDUCE, ncclInt32, 0, 777, 1, rank, asked.ranks),
                          made(ALLTOALL, ncclInt8, 0, 300, 0, rank, asked.ranks),
                          made(ALLREDUCE, ncclFloat32, 0, 90, 0, rank, asked.ranks)};
  for (int k = 0; k < 4; ++k) prepare(&cases[k], stream);
  NCCL(ncclGroupStart());
  for (int k = 0; k < 2; ++k) NCCL(call(&cases[k], comm, stream));
  NCCL(ncclGroupStart());
  for (int k = 2; k < 4; ++k) NCCL(call(&cases[k], comm, stream));
  NCCL(ncclGroupEnd());
  for (int k = 0; k < 4; ++k) /* nothing has started: the outputs are as they were */
    if (cuStreamQuery(stream) != 0) ++wrong;
  NCCL(ncclGroupEnd());
  for (int k = 0; k < 4; ++k) check(&cases[k], stream);
  if (ncclGroupEnd() != ncclInvalidUsage) ++wrong;
  leave(comm);
}

/* A graph is captured once and replayed while the same communicator is used eagerly on another stream. */
static void scenario_graph(void) {
  ncclComm_t comm = world();
  cudaStream_t stream = new_stream(), eager = new_stream();
  struct Case captured = made(ALLREDUCE, ncclFloat32, 0, 5000, 0, rank, asked.ranks);
  prepare(&captured, stream);
  CUDA(cuStreamBeginCapture_v2(stream, 0));
  NCCL(call(&captured, comm, stream));
  void *graph, *executable;
  CUDA(cuStreamEndCapture(stream, &graph));
  CUDA(cuGraphInstantiateWithFlags(&executable, graph, 0));
  CUDA(cuGraphLaunch(executable, stream));
  CUDA(cuGraphLaunch(executable, stream));
  CUDA(cuStreamSynchronize(stream));
  sweep(comm, eager, rank, asked.ranks);
  CUDA(cuGraphLaunch(executable, stream));
  check(&captured, stream);
  leave(comm);
}

/* Two communicators of the same ranks, each on a stream of its own, at the same time. */
static void scenario_streams(void) {
  ncclComm_t one = world(), other;
  NCCL(ncclCommSplit(one, 0, asked.ranks - rank, &other, NULL)); /* ranks turned round */
  cudaStream_t streams[2] = {new_stream(), new_stream()};
  const int reversed = asked.ranks - 1 - rank;
  for (int repeat = 0; repeat < 5; ++repeat) {
    struct Case a = made(ALLREDUCE, ncclFloat32, 0, 4000, 0, rank, asked.ranks),
                b = made(ALLGATHER, ncclInt32, 0, 3000, 0, reversed, asked.ranks);
    prepare(&a, streams[0]);
    prepare(&b, streams[1]);
    NCCL(call(&a, one, streams[0]));
    NCCL(call(&b, other, streams[1]));
    check(&a, streams[0]);
    check(&b, streams[1]);
  }
  leave(other);
  leave(one);
}

/* One communicator on two streams at once, with no order between them. */
static void scenario_two_streams(void) {
  ncclComm_t comm = world();
  cudaStream_t streams[2] = {new_stream(), new_stream()};
  struct Case cases[2];
  for (int k = 0; k < 2; ++k) {
    cases[k] = made(ALLREDUCE, ncclFloat32, k ? ncclMax : ncclSum, 3000, 0, rank, asked.ranks);
    prepare(&cases[k], streams[k]);
    NCCL(call(&cases[k], comm, streams[k]));
    CUDA(cuStreamSynchronize(streams[k])); /* as the stand-in has no order of a communicator's kernels */
  }
  for (int k = 0; k < 2; ++k) check(&cases[k], streams[k]);
  leave(comm);
}

static void scenario_split(void) {
  ncclComm_t comm = world(), half, shrunk, none;
  cudaStream_t stream = new_stream();
  const int size = asked.ranks / 2;
  NCCL(ncclCommSplit(comm, rank / size, rank, &half, NULL));
  sweep(half, stream, rank % size, size);
  NCCL(ncclCommSplit(comm, rank == 0 ? NCCL_SPLIT_NOCOLOR : 1, rank, &none, NULL));
  if ((none == NULL) != (rank == 0)) ++wrong;
  if (none != NULL) leave(none);
  int excluded[1] = {asked.ranks - 1};
  if (rank != asked.ranks - 1) {
    NCCL(ncclCommShrink(comm, excluded, 1, &shrunk, NULL, 0));
    sweep(shrunk, stream, rank, asked.ranks - 1);
    leave(shrunk);
  }
  sweep(comm, stream, rank, asked.ranks);
  leave(half);
  leave(comm);
}

/* All ranks but the last grow by it. */
static void scenario_grow(void) {
  const int old = asked.ranks - 1;
  ncclComm_t small = NULL, grown;
  ncclUniqueId id;
  if (rank < old) NCCL(ncclCommInitRank(&small, old, common->id, rank));
  if (rank == 0) {
    NCCL(ncclCommGetUniqueId(small, &id));
    common->second = id;
    common->second_ready = 1;
  }
  while ((rank == 0 || rank == old) && !common->second_ready) usleep(100);
  NCCL(ncclCommGrow(small, asked.ranks, rank == 0 || rank == old ? &common->second : NULL, rank < old ? -1 : rank,
                    &grown, NULL));
  sweep(grown, new_stream(), rank, asked.ranks);
  leave(grown);
}

static void scenario_scalable(void) {
  ncclComm_t comm;
  ncclConfig_t config = {sizeof config, NCCL_API_MAGIC, 23203, 1};
  NCCL(ncclCommInitRankScalable(&comm, asked.ranks, rank, 1, &common->id, &config));
  sweep(comm, new_stream(), rank, asked.ranks);
  NCCL(ncclCommRevoke(comm, 0));
  NCCL(ncclCommAbort(comm));
}

static void scenario_nonblocking(void) {
  ncclComm_t comm;
  ncclConfig_t config = {sizeof config, NCCL_API_MAGIC, 23203, 0};
  ncclResult_t state = ncclCommInitRankConfig(&comm, asked.ranks, common->id, rank, &config);
  if (state != ncclInProgress) ++wrong;
  while (state == ncclInProgress) NCCL(ncclCommGetAsyncError(comm, &state));
  NCCL(state);
  sweep(comm, new_stream(), rank, asked.ranks);
  leave(comm);
}

/* An operator that multiplies before it sums. */
static void scenario_premul(void) {
  ncclComm_t comm = world();
  cudaStream_t stream = new_stream();
  ncclRedOp_t op;
  float one = 1;
  NCCL(ncclRedOpCreatePreMulSum(&op, &one, ncclFloat32, 1, comm));
  struct Case c = made(ALLREDUCE, ncclFloat32, ncclSum, 1000, 0, rank, asked.ranks);
  prepare(&c, stream);
  NCCL(ncclAllReduce((const void*)c.send, (void*)c.receive, c.count, ncclFloat32, op, comm, stream));
  check(&c, stream);
  leave(comm);
}

/* The errors are NCCL's. */
static void scenario_errors(void) {
  ncclComm_t comm = world();
  cudaStream_t stream = new_stream();
  int buffer[4];
  if (ncclBroadcast(buffer, buffer, 1, ncclInt32, 99, comm, stream) != ncclInvalidArgument) ++wrong;
  if (ncclAllReduce(buffer, buffer, 1, (ncclDataType_t)77, ncclSum, comm, stream) != ncclInvalidArgument) ++wrong;
  if (ncclAllGather(buffer, buffer, 1, ncclInt32, NULL, stream) != ncclInvalidArgument) ++wrong;
  NCCL(ncclAllGather(buffer, buffer, 0, ncclInt32, comm, stream));
  CUDA(cuStreamSynchronize(stream));
  leave(comm);
}

/* The last rank dies in the middle: the others learn it from NCCL, and none hangs. */
static void scenario_death(void) {
  ncclComm_t comm = world();
  cudaStream_t stream = new_stream();
  struct Case c = made(ALLGATHER, ncclFloat32, 0, 200000, 0, rank, asked.ranks);
  prepare(&c, stream);
  if (rank == asked.ranks - 1) _exit(9);
  ncclResult_t result = call(&c, comm, stream), error = ncclSuccess;
  for (int i = 0; i < 100000 && result == ncclSuccess && error == ncclSuccess; ++i) {
    NCCL(ncclCommGetAsyncError(comm, &error));
    usleep(100);
  }
  if (result == ncclSuccess) result = error;
  if (result != ncclRemoteError) ++wrong;
  NCCL(ncclCommAbort(comm));
}

static void* abort_soon(void* comm) {
  usleep(20000 + 3000 * rank);
  NCCL(ncclCommAbort((ncclComm_t)comm));
  return NULL;
}

/* Another thread aborts the communicator while calls are under way, as PyTorch's watchdog does. */
static void scenario_abort(void) {
  ncclComm_t comm = world();
  cudaStream_t stream = new_stream();
  struct Case c = made(ALLREDUCE, ncclFloat32, 0, 20000, 0, rank, asked.ranks);
  prepare(&c, stream);
  pthread_t watchdog;
  if (pthread_create(&watchdog, NULL, abort_soon, comm) != 0) exit(5);
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < 1000000 && result == ncclSuccess; ++i) {
    result = call(&c, comm, stream);
    CUDA(cuStreamSynchronize(stream));
  }
  pthread_join(watchdog, NULL);
  if (result == ncclSuccess) ++wrong;
}

/* The last rank dies before the communicator is there for all to compare programs. */
static void scenario_early_death(void) {
  ncclComm_t comm;
  if (rank == asked.ranks - 1) { /* it joins by the real library's back door, and goes */
    void* handle = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
    typedef ncclResult_t (*Init)(ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*);
    NCCL(((Init)dlsym(handle, "ncclCommInitRankConfig"))(&comm, asked.ranks, common->id, rank, NULL));
    _exit(9);
  }
  if (ncclCommInitRank(&comm, asked.ranks, common->id, rank) != ncclRemoteError) ++wrong;
}

/* The last rank is not preloaded, and does not compare programs: the others do not wait for ever. */
static void scenario_absent(void) {
  ncclComm_t comm;
  if (rank == asked.ranks - 1) {
    void* handle = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
    typedef ncclResult_t (*Init)(ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*);
    NCCL(((Init)dlsym(handle, "ncclCommInitRankConfig"))(&comm, asked.ranks, common->id, rank, NULL));
    while (common->second_ready < asked.ranks - 1) usleep(1000);
    return;
  }
  if (ncclCommInitRank(&comm, asked.ranks, common->id, rank) != ncclSystemError) ++wrong;
  __sync_fetch_and_add(&common->second_ready, 1);
}

/* No memory for scratch. */
static void scenario_no_memory(void) {
  ncclComm_t comm = world();
  cudaStream_t stream = new_stream();
  struct Case c = made(ALLREDUCE, ncclFloat32, 0, 50000, 0, rank, asked.ranks);
  prepare(&c, stream);
  setenv("STANDIN_MEMORY", "1000", 1);
  if (call(&c, comm, stream) != ncclUnhandledCudaError) ++wrong;
}

/* One process holds all ranks. */
static void scenario_one_process(void) {
  enum { MOST = 8 };
  ncclComm_t comms[MOST];
  cudaStream_t streams[MOST];
  struct Case cases[MOST];
  int devices[MOST];
  for (int r = 0; r < asked.ranks; ++r) devices[r] = r % asked.devices;
  NCCL(ncclCommInitAll(comms, asked.ranks, devices));
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (int r = 0; r < asked.ranks; ++r) {
      CUcontext context;
      CUDA(cuDevicePrimaryCtxRetain(&context, devices[r]));
      CUDA(cuCtxPushCurrent_v2(context));
      if (repeat == 0) streams[r] = new_stream();
      cases[r] = made(repeat ? ALLREDUCE : ALLGATHER, ncclFloat32, 0, 1000, repeat, r, asked.ranks);
      prepare(&cases[r], streams[r]);
    }
    NCCL(ncclGroupStart());
    for (int r = 0; r < asked.ranks; ++r) NCCL(call(&cases[r], comms[r], streams[r]));
    NCCL(ncclGroupEnd());
    for (int r = 0; r < asked.ranks; ++r) check(&cases[r], streams[r]);
  }
  for (int r = 0; r < asked.ranks; ++r) leave(comms[r]);
  /* The same ranks again, made in a group. */
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  NCCL(ncclGroupStart());
  for (int r = 0; r < asked.ranks; ++r) NCCL(ncclCommInitRank(&comms[r], asked.ranks, id, r));
  NCCL(ncclGroupEnd());
  for (int r = 0; r < asked.ranks; ++r) {
    cases[r] = made(ALLTOALL, ncclFloat32, 0, 500, 0, r, asked.ranks);
    prepare(&cases[r], streams[r]);
  }
  NCCL(ncclGroupStart());
  for (int r = 0; r < asked.ranks; ++r) NCCL(call(&cases[r], comms[r], streams[r]));
  NCCL(ncclGroupEnd());
  for (int r = 0; r < asked.ranks; ++r) check(&cases[r], streams[r]);
}

static double nanoseconds(const struct timespec* begin, const struct timespec* end) {
  return (end->tv_sec - begin->tv_sec) * 1e9 + (end->tv_nsec - begin->tv_nsec);
}

/* What a call costs beside the real one: delegated, and until a program is chosen. Both are calls that end at once: one
   of a type that the library refuses, and one in a group that is dropped, so that nothing is executed. */
static void scenario_overhead(void) {
  typedef ncclResult_t (*AllGather)(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t);
  enum { CALLS = 2000, REPEATS = 50 };
  ncclComm_t comm = world();
  cudaStream_t stream = new_stream();
  void* handle = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
  const AllGather functions[2] = {ncclAllGather, (AllGather)dlsym(handle, "ncclAllGather")};
  double best[3] = {1e30, 1e30, 1e30};
  int buffer[8];
  for (int repeat = 0; repeat < REPEATS; ++repeat) {
    struct timespec begin, end;
    for (int k = 0; k < 2; ++k) {
      clock_gettime(CLOCK_MONOTONIC, &begin);
      for (int i = 0; i < CALLS; ++i) functions[k](NULL, NULL, 1, (ncclDataType_t)77, comm, stream);
      clock_gettime(CLOCK_MONOTONIC, &end);
      if (nanoseconds(&begin, &end) / CALLS < best[k]) best[k] = nanoseconds(&begin, &end) / CALLS;
    }
    NCCL(ncclGroupStart());
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < CALLS; ++i) ncclAllGather(buffer, buffer, 1 + i % 5000, ncclInt32, comm, stream);
    clock_gettime(CLOCK_MONOTONIC, &end);
    NCCL(ncclGroupSimulateEnd(NULL));
    if (nanoseconds(&begin, &end) / CALLS < best[2]) best[2] = nanoseconds(&begin, &end) / CALLS;
  }
  if (rank == 0) printf("{\"delegated_ns\": %.1f, \"selection_ns\": %.1f}\n", best[0] - best[1], best[2]);
  leave(comm);
}

static const struct {
  const char* name;
  void (*run)(void);
} scenarios[] = {
    {"all", scenario_all},
    {"null_stream", scenario_null_stream},
    {"group", scenario_group},
    {"graph", scenario_graph},
    {"streams", scenario_streams},
    {"two_streams", scenario_two_streams},
    {"split", scenario_split},
    {"grow", scenario_grow},
    {"scalable", scenario_scalable},
    {"nonblocking", scenario_nonblocking},
    {"premul", scenario_premul},
    {"errors", scenario_errors},
    {"death", scenario_death},
    {"early_death", scenario_early_death},
    {"abort", scenario_abort},
    {"absent", scenario_absent},
    {"no_memory", scenario_no_memory},
    {"one_process", scenario_one_process},
    {"overhead", scenario_overhead},
};

static int run_rank(void) {
  char variable[32];
  snprintf(variable, sizeof variable, "PROGRAMS_%d", rank); /* what this rank has, where it is not what all have */
  const char* own = getenv(variable);
  if (own != NULL) setenv("TECCL_NCCL_PROGRAMS", own, 1);
  snprintf(variable, sizeof variable, "HOST_%d", rank);
  if (getenv(variable) != NULL) setenv("NCCL_HOSTID", getenv(variable), 1);
  CUcontext context;
  CUdevice device;
  CUDA(cuInit(0));
  CUDA(cuDeviceGet(&device, rank % asked.devices));
  CUDA(cuDevicePrimaryCtxRetain(&context, device));
  CUDA(cuCtxPushCurrent_v2(context));
  if (rank == 0) {
    NCCL(ncclGetUniqueId(&common->id));
    common->ready = 1;
  }
  while (!common->ready) usleep(100);
  for (size_t k = 0; k < sizeof scenarios / sizeof *scenarios; ++k)
    if (strcmp(scenarios[k].name, asked.scenario) == 0) scenarios[k].run();
  long (*count)(const char*) = (long (*)(const char*))dlsym(RTLD_DEFAULT, "standin_count");
  char line[256];
  const int length = snprintf(
      line, sizeof line, "{\"rank\": %d, \"checked\": %ld, \"wrong\": %ld, \"sends\": %ld, \"collectives\": %ld}\n",
      rank, checked, wrong, count != NULL ? count("sends") : -1, count != NULL ? count("collectives") : -1);
  fflush(stdout);
  if (write(1, line, length) != length) return 5;
  return wrong ? 1 : 0;
}

int main(int argc, char** argv) {
  if (argc > 1) asked.scenario = argv[1];
  for (int i = 2; i < argc; ++i) {
    const char* value = strchr(argv[i], '=');
    if (value == NULL) return 2;
    ++value;
    if (strncmp(argv[i], "ranks=", 6) == 0) asked.ranks = atoi(value);
    if (strncmp(argv[i], "root=", 5) == 0) asked.root = atoi(value);
    if (strncmp(argv[i], "devices=", 8) == 0) asked.devices = atoi(value);
    if (strncmp(argv[i], "collective=", 11) == 0) asked.collective = value;
    if (strncmp(argv[i], "type=", 5) == 0) asked.type = value;
    if (strncmp(argv[i], "op=", 3) == 0) asked.op = value;
    if (strncmp(argv[i], "counts=", 7) == 0) asked.counts = value;
    if (strncmp(argv[i], "mode=", 5) == 0) asked.mode = value;
  }
  common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  memset(common, 0, sizeof *common);
  const int processes = strcmp(asked.scenario, "one_process") == 0 ? 1 : asked.ranks;
  pid_t children[64];
  for (int r = 0; r < processes; ++r) {
    children[r] = fork();
    if (children[r] == 0) {
      rank = r;
      exit(run_rank());
    }
  }
  int worst = 0, left = processes;
  for (int waited = 0; left > 0; ++waited) {
    int status;
    const pid_t ended = waitpid(-1, &status, WNOHANG);
    if (ended > 0) {
      --left;
      for (int r = 0; r < processes; ++r)
        if (children[r] == ended) children[r] = 0;
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      if (code != 9 && code > worst) worst = code; /* 9: it was to die */
      continue;
    }
    if (waited > 60000) { /* a minute: a hang */
      fprintf(stderr, "driver: a hang\n");
      for (int r = 0; r < processes; ++r)
        if (children[r] > 0) kill(children[r], SIGKILL);
      worst = 124;
      waited = 0;
    }
    usleep(1000);
  }
  return worst;
}
