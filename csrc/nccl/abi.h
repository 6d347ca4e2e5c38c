/* The part of NCCL's and the CUDA driver's binary interfaces that is used here, declared so that neither has to be
   there to build. tests/test_nccl_abi.py compares it with the nccl.h of NVIDIA's wheels. Read by C and C++. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* -- NCCL 2.20 to 2.32 ------------------------------------------------------------------------------------------ */

typedef struct ncclComm* ncclComm_t;
typedef struct CUstream_st* cudaStream_t;

#define NCCL_UNIQUE_ID_BYTES 128
typedef struct { char internal[NCCL_UNIQUE_ID_BYTES]; } ncclUniqueId;

typedef enum {
  ncclSuccess = 0, ncclUnhandledCudaError = 1, ncclSystemError = 2, ncclInternalError = 3, ncclInvalidArgument = 4,
  ncclInvalidUsage = 5, ncclRemoteError = 6, ncclInProgress = 7
} ncclResult_t;

typedef enum {
  ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4, ncclNumOps = 5, ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

#ifdef __cplusplus
typedef enum : unsigned { /* later versions have more types, which are passed on */
#else
typedef enum {
#endif
  ncclInt8 = 0, ncclUint8 = 1, ncclInt32 = 2, ncclUint32 = 3, ncclInt64 = 4, ncclUint64 = 5, ncclFloat16 = 6,
  ncclFloat32 = 7, ncclFloat64 = 8, ncclBfloat16 = 9, ncclFloat8e4m3 = 10, ncclFloat8e5m2 = 11
} ncclDataType_t;

/* What every version's configuration begins with; `size` says how much follows. */
typedef struct ncclConfig {
  size_t size;
  unsigned int magic;
  unsigned int version;
  int blocking;
} ncclConfig_t;
typedef struct ncclSimInfo ncclSimInfo_t;
#define NCCL_API_MAGIC 0xcafebeef
#define NCCL_CONFIG_UNDEF_INT INT32_MIN
#define NCCL_SPLIT_NOCOLOR (-1)

/* Functions as F(result, name, parameters): the ones that are overridden, then those that are only called. */
#define NCCL_OVERRIDDEN(F)                                                                                             \
  F(ncclResult_t, ncclAllGather, (const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))               \
  F(ncclResult_t, ncclReduceScatter,                                                                                   \
    (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))                               \
  F(ncclResult_t, ncclAllReduce, (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t))  \
  F(ncclResult_t, ncclBroadcast, (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))          \
  F(ncclResult_t, ncclBcast, (void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                           \
  F(ncclResult_t, ncclReduce,                                                                                          \
    (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t))                          \
  F(ncclResult_t, ncclAlltoAll, (const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t))                \
  F(ncclResult_t, ncclGather, (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))             \
  F(ncclResult_t, ncclScatter, (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))            \
  F(ncclResult_t, ncclGroupStart, (void))                                                                              \
  F(ncclResult_t, ncclGroupEnd, (void))                                                                                \
  F(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t*))                                                              \
  F(ncclResult_t, ncclCommInitRank, (ncclComm_t*, int, ncclUniqueId, int))                                             \
  F(ncclResult_t, ncclCommInitAll, (ncclComm_t*, int, const int*))                                                     \
  F(ncclResult_t, ncclCommInitRankConfig, (ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*))                        \
  F(ncclResult_t, ncclCommInitRankScalable, (ncclComm_t*, int, int, int, ncclUniqueId*, ncclConfig_t*))                \
  F(ncclResult_t, ncclCommSplit, (ncclComm_t, int, int, ncclComm_t*, ncclConfig_t*))                                   \
  F(ncclResult_t, ncclCommShrink, (ncclComm_t, int*, int, ncclComm_t*, ncclConfig_t*, int))                            \
  F(ncclResult_t, ncclCommGrow, (ncclComm_t, int, const ncclUniqueId*, int, ncclComm_t*, ncclConfig_t*))               \
  F(ncclResult_t, ncclCommFinalize, (ncclComm_t))                                                                      \
  F(ncclResult_t, ncclCommDestroy, (ncclComm_t))                                                                       \
  F(ncclResult_t, ncclCommAbort, (ncclComm_t))                                                                         \
  F(ncclResult_t, ncclCommRevoke, (ncclComm_t, int))

#define NCCL_CALLED(F)                                                                                                 \
  F(ncclResult_t, ncclGetVersion, (int*))                                                                              \
  F(ncclResult_t, ncclCommCount, (const ncclComm_t, int*))                                                             \
  F(ncclResult_t, ncclCommUserRank, (const ncclComm_t, int*))                                                          \
  F(ncclResult_t, ncclCommCuDevice, (const ncclComm_t, int*))                                                          \
  F(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t, ncclResult_t*))                                                  \
  F(ncclResult_t, ncclSend, (const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))                      \
  F(ncclResult_t, ncclRecv, (void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t))

/* -- The CUDA driver and NVRTC ---------------------------------------------------------------------------------- */

typedef int CUresult; /* 0: success, 600: not ready */
typedef int CUdevice;
typedef struct CUctx_st* CUcontext;
typedef struct CUmod_st* CUmodule;
typedef struct CUfunc_st* CUfunction;
typedef unsigned long long CUdeviceptr;
#define CUDA_ERROR_NOT_READY 600
#define CU_STREAM_NON_BLOCKING 1
#define CU_STREAM_CAPTURE_MODE_RELAXED 2
#define CU_STREAM_CAPTURE_STATUS_ACTIVE 1
#define CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT 16
#define CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR 75
#define CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR 76

/* As F(name, symbol, parameters): later versions of a function have a symbol of their own. */
#define CUDA_CALLED(F)                                                                                                 \
  F(cuDeviceGet, cuDeviceGet, (CUdevice*, int))                                                                        \
  F(cuDeviceGetAttribute, cuDeviceGetAttribute, (int*, int, CUdevice))                                                 \
  F(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (CUcontext*, CUdevice))                                        \
  F(cuCtxPushCurrent, cuCtxPushCurrent_v2, (CUcontext))                                                                \
  F(cuCtxPopCurrent, cuCtxPopCurrent_v2, (CUcontext*))                                                                 \
  F(cuMemAlloc, cuMemAlloc_v2, (CUdeviceptr*, size_t))                                                                 \
  F(cuMemFree, cuMemFree_v2, (CUdeviceptr))                                                                            \
  F(cuMemcpyAsync, cuMemcpyAsync, (CUdeviceptr, CUdeviceptr, size_t, cudaStream_t))                                    \
  F(cuStreamCreate, cuStreamCreate, (cudaStream_t*, unsigned int))                                                     \
  F(cuStreamDestroy, cuStreamDestroy_v2, (cudaStream_t))                                                               \
  F(cuStreamQuery, cuStreamQuery, (cudaStream_t))                                                                      \
  F(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v2,                                                                 \
    (cudaStream_t, int*, unsigned long long*, void*, const void*, size_t*))                                            \
  F(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, (int*))                                      \
  F(cuModuleLoadData, cuModuleLoadData, (CUmodule*, const void*))                                                      \
  F(cuModuleGetFunction, cuModuleGetFunction, (CUfunction*, CUmodule, const char*))                                    \
  F(cuLaunchKernel, cuLaunchKernel,                                                                                    \
    (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cudaStream_t, void**, void**))

typedef struct _nvrtcProgram* nvrtcProgram;
#define NVRTC_CALLED(F)                                                                                                \
  F(nvrtcCreateProgram, nvrtcCreateProgram,                                                                            \
    (nvrtcProgram*, const char*, const char*, int, const char* const*, const char* const*))                            \
  F(nvrtcDestroyProgram, nvrtcDestroyProgram, (nvrtcProgram*))                                                         \
  F(nvrtcCompileProgram, nvrtcCompileProgram, (nvrtcProgram, int, const char* const*))                                 \
  F(nvrtcGetCUBINSize, nvrtcGetCUBINSize, (nvrtcProgram, size_t*))                                                     \
  F(nvrtcGetCUBIN, nvrtcGetCUBIN, (nvrtcProgram, char*))

#ifdef __cplusplus
}
#endif
