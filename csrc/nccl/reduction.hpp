// Reductions on the GPU: the kernel in reduction_kernel.h, compiled by the NVRTC that comes with PyTorch and with CUDA.
#pragma once

#include "abi.h"

namespace teccl::nccl {

struct Reduction {
  CUfunction combine = nullptr;
  CUfunction scale = nullptr;
  unsigned blocks = 0;  // at most

  explicit operator bool() const { return combine != nullptr && scale != nullptr; }

  // out = a ∘ b, elementwise; `op` other than product, maximum and minimum is a sum.
  CUresult combined(void* out, const void* a, const void* b, size_t count, ncclDataType_t type, ncclRedOp_t op,
                    cudaStream_t stream) const;
  // out = in · 1/n for floats, in / n for integers.
  CUresult scaled(void* out, const void* in, size_t count, ncclDataType_t type, int n, cudaStream_t stream) const;
};

// For the device whose context is current; without functions where there is no NVRTC, or it cannot compile for it.
Reduction reduction_for(CUdevice device);

size_t element_bytes(ncclDataType_t type);  // 0 for an unknown type
bool is_integer(ncclDataType_t type);

}  // namespace teccl::nccl
