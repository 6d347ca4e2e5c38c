#include "reduction.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "ledger.hpp"
#include "libraries.hpp"
#include "reduction_source.hpp"

namespace teccl::nccl {

namespace {

constexpr unsigned threads_per_block = 256;
constexpr unsigned blocks_per_multiprocessor = 4;

// The kernel for `architecture` ("sm_90"); empty where it cannot be had.
std::vector<char> compiled(const std::string& architecture) {
  const Nvrtc* compiler = nvrtc();
  if (compiler == nullptr) {
    inform("no NVRTC was found, so no reduction kernel");
    return {};
  }
  nvrtcProgram program = nullptr;
  if (compiler->nvrtcCreateProgram(&program, reduction_source, "reduction_kernel.cu", 0, nullptr, nullptr) != 0)
    return {};
  const std::string target = "--gpu-architecture=" + architecture;
  const char* const options[] = {target.c_str(), "--std=c++17"};
  std::vector<char> cubin;
  std::size_t size = 0;
  if (compiler->nvrtcCompileProgram(program, 2, options) == 0 && compiler->nvrtcGetCUBINSize(program, &size) == 0) {
    cubin.resize(size);
    if (compiler->nvrtcGetCUBIN(program, cubin.data()) != 0) cubin.clear();
  }
  compiler->nvrtcDestroyProgram(&program);
  if (cubin.empty()) inform("NVRTC does not compile for " + architecture + ", so no reduction kernel");
  return cubin;
}

}  // namespace

Reduction reduction_for(CUdevice device) {
  static std::mutex mutex;
  static std::map<CUdevice, Reduction> known;
  static std::map<std::string, std::vector<char>> cubins;
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = known.find(device); found != known.end()) return found->second;
  Reduction& made = known[device];
  const Cuda& driver = *cuda();
  int major = 0, minor = 0, multiprocessors = 0;
  if (driver.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device) != 0 ||
      driver.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device) != 0 ||
      driver.cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != 0)
    return made;
  const std::string architecture = "sm_" + std::to_string(major) + std::to_string(minor);
  if (cubins.find(architecture) == cubins.end()) cubins[architecture] = compiled(architecture);
  const std::vector<char>& cubin = cubins[architecture];
  CUmodule module = nullptr;
  if (cubin.empty() || driver.cuModuleLoadData(&module, cubin.data()) != 0) return made;
  if (driver.cuModuleGetFunction(&made.combine, module, "teccl_combine") != 0 ||
      driver.cuModuleGetFunction(&made.scale, module, "teccl_scale") != 0)
    made.combine = made.scale = nullptr;
  made.blocks = static_cast<unsigned>(multiprocessors) * blocks_per_multiprocessor;
  return made;
}

namespace {

CUresult launched(CUfunction function, unsigned most_blocks, size_t bytes, void** arguments, cudaStream_t stream) {
  const size_t wanted = (bytes / 16 + threads_per_block) / threads_per_block;  // a thread for every 16 bytes
  const unsigned blocks = static_cast<unsigned>(std::clamp<size_t>(wanted, 1, most_blocks));
  return cuda()->cuLaunchKernel(function, blocks, 1, 1, threads_per_block, 1, 1, 0, stream, arguments, nullptr);
}

}  // namespace

CUresult Reduction::combined(void* out, const void* a, const void* b, size_t count, ncclDataType_t type, ncclRedOp_t op,
                             cudaStream_t stream) const {
  unsigned long long elements = count;
  int type_number = type, op_number = op;
  void* arguments[] = {&out, &a, &b, &elements, &type_number, &op_number};
  return launched(combine, blocks, count * element_bytes(type), arguments, stream);
}

CUresult Reduction::scaled(void* out, const void* in, size_t count, ncclDataType_t type, int n,
                           cudaStream_t stream) const {
  unsigned long long elements = count;
  int type_number = type;
  void* arguments[] = {&out, &in, &elements, &type_number, &n};
  return launched(scale, blocks, count * element_bytes(type), arguments, stream);
}

size_t element_bytes(ncclDataType_t type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return static_cast<unsigned>(type) < 12 ? sizes[type] : 0;
}

bool is_integer(ncclDataType_t type) { return type < ncclFloat16; }

}  // namespace teccl::nccl
