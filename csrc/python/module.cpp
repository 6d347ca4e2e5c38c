// The extension module: each part of the core adds its own names.
#include "module.hpp"

PYBIND11_MODULE(_core, module) {
  module.doc() = "C++ core of teccl-msccl";
  teccl::bind_program(module);
  teccl::bind_check(module);
  teccl::bind_simulate_program(module);
  teccl::bind_interpreter(module);
  teccl::bind_exchange(module);
  teccl::bind_search(module);
  teccl::bind_routing(module);
}
