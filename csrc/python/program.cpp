// Program from the integer tables that teccl_msccl/program/program.py packs.
#include "program.hpp"

#include <stdexcept>

#include "module.hpp"

namespace py = pybind11;

namespace teccl {
namespace {

using Table = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

// gpus: (ngpus, 3) input, output, scratch chunks.
// threadblocks: (ntb, 4) gpu, send, recv, channel; those of one GPU in id order.
// steps: (nsteps, 10) threadblock row, op, src buffer, src offset, dst buffer, dst offset, count,
//        dependency threadblock, dependency step, has dependents.
Program from_tables(const std::string& collective, const std::string& protocol, std::int64_t channels,
                    std::int64_t chunks_per_loop, bool in_place, bool out_of_place, const Table& gpus,
                    const Table& threadblocks, const Table& steps) {
  Program program{collective, protocol, channels, chunks_per_loop, in_place, out_of_place, {}};
  auto g = gpus.unchecked<2>();
  for (py::ssize_t i = 0; i < g.shape(0); ++i) program.gpus.push_back({g(i, 0), g(i, 1), g(i, 2), {}});

  auto t = threadblocks.unchecked<2>();
  std::vector<std::pair<std::size_t, std::size_t>> home;  // row of the table → (gpu, index in the gpu)
  for (py::ssize_t i = 0; i < t.shape(0); ++i) {
    auto gpu = static_cast<std::size_t>(t(i, 0));
    auto& list = program.gpus.at(gpu).threadblocks;
    home.emplace_back(gpu, list.size());
    list.push_back({static_cast<std::int32_t>(t(i, 1)), static_cast<std::int32_t>(t(i, 2)),
                    static_cast<std::int32_t>(t(i, 3)), {}});
  }

  auto s = steps.unchecked<2>();
  for (py::ssize_t i = 0; i < s.shape(0); ++i) {
    auto [gpu, tb] = home.at(static_cast<std::size_t>(s(i, 0)));
    program.gpus[gpu].threadblocks[tb].steps.push_back(
        {static_cast<Op>(s(i, 1)), static_cast<Buffer>(s(i, 2)), static_cast<Buffer>(s(i, 4)), s(i, 3), s(i, 5),
         s(i, 6), static_cast<std::int32_t>(s(i, 7)), static_cast<std::int32_t>(s(i, 8)), s(i, 9) != 0});
  }
  return program;
}

}  // namespace

void bind_program(py::module_& module) {
  py::class_<Program>(module, "Program")
      .def(py::init(&from_tables), py::arg("collective"), py::arg("protocol"), py::arg("channels"),
           py::arg("chunks_per_loop"), py::arg("in_place"), py::arg("out_of_place"), py::arg("gpus"),
           py::arg("threadblocks"), py::arg("steps"))
      .def_property_readonly("ranks", &Program::ranks);
}

}  // namespace teccl
