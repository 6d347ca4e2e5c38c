#include "libraries.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

namespace teccl::nccl {

namespace {

// The library as someone has loaded it, else as the loader finds it.
void* opened(const char* name) {
  void* handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
  return handle != nullptr ? handle : dlopen(name, RTLD_LAZY | RTLD_LOCAL);
}

std::string folder_of(const void* address) {
  Dl_info info;
  if (address == nullptr || dladdr(address, &info) == 0 || info.dli_fname == nullptr) return {};
  const std::string path = info.dli_fname;
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash);
}

Real find_real() {
  Real found;
  // Under PyTorch only the handle finds it, as it is loaded by a library of its own; in a plain program either does.
  void* handle = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr && dlsym(RTLD_NEXT, "ncclGetVersion") == nullptr) handle = dlopen("libnccl.so.2", RTLD_LAZY);
  void* where = handle != nullptr ? handle : RTLD_NEXT;
#define F(result, name, parameters) found.name = reinterpret_cast<result(*) parameters>(dlsym(where, #name));
  NCCL_OVERRIDDEN(F)
  NCCL_CALLED(F)
#undef F
  if (found.ncclGetVersion == nullptr || found.ncclGetVersion(&found.version) != ncclSuccess) found.version = 0;
  found.folder = folder_of(reinterpret_cast<const void*>(found.ncclGetVersion));
  return found;
}

template <typename TABLE>
struct Lookup {
  TABLE table;
  bool whole = false;
};

Lookup<Cuda> find_cuda() {
  Lookup<Cuda> found;
  void* handle = opened("libcuda.so.1");
  if (handle == nullptr) return found;
  found.whole = true;
#define F(name, symbol, parameters)                                                    \
  found.table.name = reinterpret_cast<CUresult(*) parameters>(dlsym(handle, #symbol)); \
  found.whole = found.whole && found.table.name != nullptr;
  CUDA_CALLED(F)
#undef F
  return found;
}

Lookup<Nvrtc> find_nvrtc() {
  Lookup<Nvrtc> found;
  const std::string wheels = real().folder + "/../..";  // NVIDIA's wheels lie beside one another
  std::vector<std::string> places;
  for (const char* major : {"13", "12"}) {
    const std::string name = std::string("libnvrtc.so.") + major;
    for (const std::string& folder : {std::string(), wheels + "/cuda_nvrtc/lib/", wheels + "/cu" + major + "/lib/",
                                      std::string("/usr/local/cuda/lib64/")})
      places.push_back(folder + name);
  }
  for (const std::string& place : places) {
    void* handle = opened(place.c_str());
    if (handle == nullptr) continue;
    found.whole = true;
#define F(name, symbol, parameters)                                               \
  found.table.name = reinterpret_cast<int(*) parameters>(dlsym(handle, #symbol)); \
  found.whole = found.whole && found.table.name != nullptr;
    NVRTC_CALLED(F)
#undef F
    if (found.whole) break;
  }
  return found;
}

}  // namespace

bool Real::known() const { return version >= 22000 && version < 23300; }

const Real& real() {
  static const Real found = find_real();
  return found;
}

const Cuda* cuda() {
  static const Lookup<Cuda> found = find_cuda();
  return found.whole ? &found.table : nullptr;
}

const Nvrtc* nvrtc() {
  static const Lookup<Nvrtc> found = find_nvrtc();
  return found.whole ? &found.table : nullptr;
}

}  // namespace teccl::nccl
