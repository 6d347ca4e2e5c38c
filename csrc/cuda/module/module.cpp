// The module _cuda: the kernel and the GPU's memory for Python. It takes programs of _core, which is imported first.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>

#include "cuda/gpu.hpp"

namespace py = pybind11;

namespace teccl::device {
namespace {

// Addresses on the GPU, and bytes there.
using Range = std::pair<std::uintptr_t, std::size_t>;

// One rank's input, output and scratch (which is made here, unless the rank is another process').
struct PyGpuRun {
  std::vector<std::unique_ptr<GpuMemory>> scratch;
  std::unique_ptr<GpuRun> gpu;

  PyGpuRun(const Program& program, const std::string& type, const std::string& reduction, std::int64_t chunk_elements,
           std::size_t slots, std::size_t slot_bytes, const std::vector<std::pair<Range, Range>>& buffers, int root,
           int only, int device, bool measure) {
    const Setting setting = setting_of(program, type, reduction, chunk_elements, slots, slot_bytes, root);
    if (buffers.size() != program.gpus.size())
      throw std::invalid_argument("buffers for " + std::to_string(buffers.size()) + " ranks, but the program has " +
                                  std::to_string(program.gpus.size()));
    const std::size_t chunk_bytes = setting.cut.element_bytes * static_cast<std::size_t>(chunk_elements);
    std::vector<Memory> memory;
    for (std::size_t rank = 0; rank < buffers.size(); ++rank) {
      const auto& [input, output] = buffers[rank];
      const std::int64_t scratch_chunks = program.gpus[rank].scratch_chunks;
      Memory one{{reinterpret_cast<std::byte*>(input.first), reinterpret_cast<std::byte*>(output.first), nullptr},
                 {static_cast<std::int64_t>(input.second / chunk_bytes),
                  static_cast<std::int64_t>(output.second / chunk_bytes), scratch_chunks}};
      if (scratch_chunks > 0 && (only < 0 || only == static_cast<int>(rank))) {
        scratch.push_back(std::make_unique<GpuMemory>(device, static_cast<std::size_t>(scratch_chunks) * chunk_bytes));
        one.begin[static_cast<std::size_t>(Buffer::scratch)] = scratch.back()->begin();
      }
      memory.push_back(one);
    }
    gpu = std::make_unique<GpuRun>(
        Prepared(setting, element_type_named(type), reduction_named(reduction), memory, only), device, measure);
  }
};

}  // namespace
}  // namespace teccl::device

PYBIND11_MODULE(_cuda, module) {
  using namespace teccl::device;
  module.doc() = "The kernel of teccl-msccl on NVIDIA GPUs";
  py::register_exception<TooManyBlocks>(module, "TooManyBlocks", PyExc_RuntimeError);
  py::register_exception<CudaError>(module, "CudaError", PyExc_RuntimeError);

  module.def("gpus", [] {
    std::string why;
    const int count = gpus(why);
    return std::make_pair(count, why);
  });
  module.def("device_copy_seconds", &device_copy_seconds, py::arg("device"), py::arg("nbytes"), py::arg("times"));

  py::class_<GpuMemory>(module, "Memory")
      .def(py::init<int, std::size_t>(), py::arg("device"), py::arg("nbytes"))
      .def_property_readonly("address", [](const GpuMemory& self) { return reinterpret_cast<std::uintptr_t>(self.begin()); })
      .def_property_readonly("nbytes", &GpuMemory::bytes)
      .def("upload",
           [](GpuMemory& self, const py::array_t<std::uint8_t, py::array::c_style>& bytes) {
             if (static_cast<std::size_t>(bytes.nbytes()) > self.bytes()) throw std::invalid_argument("does not fit");
             self.upload(bytes.data(), static_cast<std::size_t>(bytes.nbytes()));
           })
      .def("download", [](const GpuMemory& self) {
        py::array_t<std::uint8_t> bytes(static_cast<py::ssize_t>(self.bytes()));
        self.download(bytes.mutable_data(), self.bytes());
        return bytes;
      });

  py::class_<PyGpuRun>(module, "GpuRun")
      .def(py::init<const teccl::Program&, const std::string&, const std::string&, std::int64_t, std::size_t, std::size_t,
                    const std::vector<std::pair<Range, Range>>&, int, int, int, bool>(),
           py::arg("program"), py::kw_only(), py::arg("dtype"), py::arg("op"), py::arg("chunk_elements"),
           py::arg("slots"), py::arg("slot_bytes"), py::arg("buffers"), py::arg("root") = -1, py::arg("rank") = -1,
           py::arg("device") = 0, py::arg("measure") = false, py::keep_alive<1, 2>())
      .def_property_readonly("handle",
                             [](const PyGpuRun& self) {
                               const IpcHandle handle = self.gpu->handle();
                               return py::bytes(handle.data(), handle.size());
                             })
      .def("connect",
           [](PyGpuRun& self, const std::vector<std::string>& handles) {
             std::vector<IpcHandle> native;
             for (const std::string& handle : handles) {
               if (handle.size() != IpcHandle{}.size()) throw std::invalid_argument("a handle has 64 bytes");
               std::copy(handle.begin(), handle.end(), native.emplace_back().begin());
             }
             self.gpu->connect(native);
           })
      .def(
          "run",
          [](PyGpuRun& self, std::uintptr_t stream, double timeout) {
            py::gil_scoped_release release;
            const auto outcome = self.gpu->run(reinterpret_cast<void*>(stream), timeout);
            return std::make_pair(outcome.seconds, outcome.blocked);
          },
          py::kw_only(), py::arg("stream"), py::arg("timeout"))
      .def_property_readonly("times", [](const PyGpuRun& self) { return self.gpu->prepared().named(self.gpu->times()); })
      .def_property_readonly("threads", [](const PyGpuRun& self) { return self.gpu->threads(); })
      .def_property_readonly("fifo_bytes", [](const PyGpuRun& self) { return self.gpu->prepared().fifo_bytes(); });
}
