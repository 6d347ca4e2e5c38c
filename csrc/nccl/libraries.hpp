// The libraries that the process has loaded, found at the first use: the real NCCL, the CUDA driver, NVRTC.
#pragma once

#include <string>

#include "abi.h"

namespace teccl::nccl {

// The real NCCL's functions; null where it has none of that name.
struct Real {
#define F(result, name, parameters) result(*name) parameters = nullptr;
  NCCL_OVERRIDDEN(F)
  NCCL_CALLED(F)
#undef F
  int version = 0;  // as major · 10000 + minor · 100 + patch; 0: no NCCL was found
  std::string folder;

  bool known() const;  // whether it is one of the versions whose interface is known here
};
const Real& real();

struct Cuda {
#define F(name, symbol, parameters) CUresult(*name) parameters = nullptr;
  CUDA_CALLED(F)
#undef F
};
const Cuda* cuda();  // null where there is no driver

struct Nvrtc {
#define F(name, symbol, parameters) int(*name) parameters = nullptr;
  NVRTC_CALLED(F)
#undef F
};
const Nvrtc* nvrtc();  // null where there is none

}  // namespace teccl::nccl
