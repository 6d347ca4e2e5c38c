#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace teccl {

void bind_program(pybind11::module_& module);
void bind_check(pybind11::module_& module);
void bind_simulate_program(pybind11::module_& module);
void bind_interpreter(pybind11::module_& module);
void bind_exchange(pybind11::module_& module);
void bind_search(pybind11::module_& module);
void bind_routing(pybind11::module_& module);

}  // namespace teccl
