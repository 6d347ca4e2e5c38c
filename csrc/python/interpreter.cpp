// The interpreter: World (ranks as threads) and Endpoint (one rank, messages carried by Python).
#include "interpreter.hpp"

#include <set>
#include <stdexcept>

#include "cuda/host.hpp"
#include "endpoint.hpp"
#include "module.hpp"

namespace py = pybind11;

namespace teccl {
namespace {

// A rank's input, output and scratch as flat arrays of bytes.
using Bytes = py::array_t<std::uint8_t, py::array::c_style>;
using RankBuffers = std::tuple<Bytes, Bytes, Bytes>;

Injection injection_of(const std::set<std::string>& names, std::uint64_t seed) {
  Injection injection;
  injection.seed = seed;
  for (const std::string& name : names) {
    if (name == "shuffle") injection.shuffle = true;
    else if (name == "delay") injection.delay = true;
    else if (name == "adversarial") injection.adversarial = true;
    else if (name == "reorder") injection.reorder = true;
    else throw std::invalid_argument("cannot inject '" + name + "'");
  }
  return injection;
}

Setting setting_under(const Program& program, const std::string& type, const std::string& reduction,
                      std::int64_t chunk_elements, std::size_t slots, std::size_t slot_bytes, int root,
                      const std::set<std::string>& inject, std::uint64_t seed) {
  Setting setting = setting_of(program, type, reduction, chunk_elements, slots, slot_bytes, root);
  setting.injection = injection_of(inject, seed);
  return setting;
}

Memory memory_of(RankBuffers& buffers, const Setting& setting) {
  const auto chunk_bytes = static_cast<std::int64_t>(setting.cut.element_bytes) * setting.cut.chunk_elements;
  Memory memory{};
  Bytes* arrays[] = {&std::get<0>(buffers), &std::get<1>(buffers), &std::get<2>(buffers)};
  for (std::size_t b = 0; b < 3; ++b) {
    memory.begin[b] = reinterpret_cast<std::byte*>(arrays[b]->mutable_data());
    memory.chunks[b] = arrays[b]->nbytes() / chunk_bytes;
  }
  return memory;
}

struct PyWorld {
  std::vector<RankBuffers> buffers;  // kept alive
  World world;

  static std::vector<Memory> memory(std::vector<RankBuffers>& buffers, const Setting& setting) {
    if (buffers.size() != setting.program->gpus.size())
      throw std::invalid_argument("buffers for " + std::to_string(buffers.size()) + " ranks, but the program has " +
                                  std::to_string(setting.program->ranks()));
    std::vector<Memory> all;
    for (RankBuffers& rank : buffers) all.push_back(memory_of(rank, setting));
    return all;
  }
  PyWorld(std::vector<RankBuffers> given, const Setting& setting)
      : buffers(std::move(given)), world(setting, memory(buffers, setting)) {}
};

// The kernel's code, executed by threads of the host.
struct PyHostKernel {
  std::vector<RankBuffers> buffers;  // kept alive
  device::HostRun kernel;

  PyHostKernel(std::vector<RankBuffers> given, const Setting& setting, const std::string& type,
               const std::string& reduction)
      : buffers(std::move(given)),
        kernel(device::Prepared(setting, element_type_named(type), reduction_named(reduction),
                                PyWorld::memory(buffers, setting), -1)) {}
};

struct PyEndpoint {
  RankBuffers buffers;  // kept alive
  Endpoint endpoint;

  static std::vector<Memory> memory(RankBuffers& mine, int rank, const std::vector<std::array<std::int64_t, 3>>& chunks,
                                    const Setting& setting) {
    if (chunks.size() != setting.program->gpus.size() || rank < 0 || rank >= setting.program->ranks())
      throw std::invalid_argument("rank or chunk counts do not fit the program's " +
                                  std::to_string(setting.program->ranks()) + " ranks");
    std::vector<Memory> all;
    for (const auto& counts : chunks) all.push_back({{}, {counts[0], counts[1], counts[2]}});
    all[static_cast<std::size_t>(rank)] = memory_of(mine, setting);
    return all;
  }
  PyEndpoint(int rank, RankBuffers mine, const std::vector<std::array<std::int64_t, 3>>& chunks,
             const Setting& setting)
      : buffers(std::move(mine)), endpoint(setting, rank, memory(buffers, rank, chunks, setting)) {}
};

using Views = std::vector<std::pair<std::size_t, py::memoryview>>;
Views views_of(const std::vector<Endpoint::Parcel>& parcels) {
  Views views;
  for (const auto& [line, message] : parcels)
    views.emplace_back(line, py::memoryview::from_memory(message.begin, static_cast<py::ssize_t>(message.bytes)));
  return views;
}

bool signal_pending() {
  py::gil_scoped_acquire hold;
  return PyErr_CheckSignals() != 0;
}

}  // namespace

void bind_interpreter(py::module_& module) {
  py::class_<PyWorld>(module, "World")
      .def(py::init([](const Program& program, const std::string& dtype, const std::string& op,
                       std::int64_t chunk_elements, std::size_t slots, std::size_t slot_bytes,
                       std::vector<RankBuffers> buffers, int root, const std::set<std::string>& inject,
                       std::uint64_t seed) {
             return std::make_unique<PyWorld>(
                 std::move(buffers),
                 setting_under(program, dtype, op, chunk_elements, slots, slot_bytes, root, inject, seed));
           }),
           py::arg("program"), py::kw_only(), py::arg("dtype"), py::arg("op"), py::arg("chunk_elements"),
           py::arg("slots"), py::arg("slot_bytes"), py::arg("buffers"), py::arg("root") = -1,
           py::arg("inject") = std::set<std::string>(), py::arg("seed") = 0, py::keep_alive<1, 2>())
      .def(
          "run",
          [](PyWorld& self, std::size_t workers, double timeout) {
            World::Outcome outcome;
            {
              py::gil_scoped_release release;
              outcome = self.world.run(workers, timeout, signal_pending);
            }
            if (outcome.interrupted) throw py::error_already_set();
            return std::make_pair(outcome.seconds, outcome.blocked);
          },
          py::kw_only(), py::arg("workers"), py::arg("timeout"))
      .def_property_readonly("fifo_bytes", [](const PyWorld& self) { return self.world.fifo_bytes(); });

  py::class_<PyHostKernel>(module, "HostKernel")
      .def(py::init([](const Program& program, const std::string& dtype, const std::string& op,
                       std::int64_t chunk_elements, std::size_t slots, std::size_t slot_bytes,
                       std::vector<RankBuffers> buffers, int root) {
             return std::make_unique<PyHostKernel>(
                 std::move(buffers), setting_of(program, dtype, op, chunk_elements, slots, slot_bytes, root), dtype, op);
           }),
           py::arg("program"), py::kw_only(), py::arg("dtype"), py::arg("op"), py::arg("chunk_elements"),
           py::arg("slots"), py::arg("slot_bytes"), py::arg("buffers"), py::arg("root") = -1, py::keep_alive<1, 2>())
      .def(
          "run",
          [](PyHostKernel& self, double timeout) {
            py::gil_scoped_release release;
            const auto outcome = self.kernel.run(timeout);
            return std::make_pair(outcome.seconds, outcome.blocked);
          },
          py::kw_only(), py::arg("timeout"))
      .def_property_readonly("times", [](const PyHostKernel& self) { return self.kernel.prepared().named(self.kernel.times()); })
      .def_property_readonly("fifo_bytes", [](const PyHostKernel& self) { return self.kernel.prepared().fifo_bytes(); });

  py::class_<PyEndpoint>(module, "Endpoint")
      .def(py::init([](const Program& program, int rank, const std::string& dtype, const std::string& op,
                       std::int64_t chunk_elements, std::size_t slots, std::size_t slot_bytes, RankBuffers buffers,
                       const std::vector<std::array<std::int64_t, 3>>& chunks, int root,
                       const std::set<std::string>& inject, std::uint64_t seed) {
             return std::make_unique<PyEndpoint>(
                 rank, std::move(buffers), chunks,
                 setting_under(program, dtype, op, chunk_elements, slots, slot_bytes, root, inject, seed));
           }),
           py::arg("program"), py::arg("rank"), py::kw_only(), py::arg("dtype"), py::arg("op"),
           py::arg("chunk_elements"), py::arg("slots"), py::arg("slot_bytes"), py::arg("buffers"), py::arg("chunks"),
           py::arg("root") = -1, py::arg("inject") = std::set<std::string>(), py::arg("seed") = 0,
           py::keep_alive<1, 2>())
      .def("restart", [](PyEndpoint& self) { self.endpoint.restart(); })
      .def(
          "advance", [](PyEndpoint& self) { return self.endpoint.advance(); },
          py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("progress", [](const PyEndpoint& self) { return self.endpoint.progress(); })
      .def_property_readonly("finished", [](const PyEndpoint& self) { return self.endpoint.finished(); })
      .def("blocked", [](const PyEndpoint& self) { return self.endpoint.blocked(); })
      .def_property_readonly("outgoing",
                             [](const PyEndpoint& self) {
                               std::vector<std::pair<int, int>> lines;
                               for (const auto& line : self.endpoint.outgoing())
                                 lines.emplace_back(line->connection.dst, line->connection.channel);
                               return lines;
                             })
      .def_property_readonly("incoming",
                             [](const PyEndpoint& self) {
                               std::vector<std::pair<int, int>> lines;
                               for (const auto& line : self.endpoint.incoming())
                                 lines.emplace_back(line->connection.src, line->connection.channel);
                               return lines;
                             })
      .def("departures", [](PyEndpoint& self) { return views_of(self.endpoint.departures()); })
      .def("landings", [](PyEndpoint& self) { return views_of(self.endpoint.landings()); })
      .def("credits", [](PyEndpoint& self) { return self.endpoint.credits(); })
      .def("landed", [](PyEndpoint& self, std::size_t line) { self.endpoint.landed(line); })
      .def("credited", [](PyEndpoint& self, std::size_t line) { self.endpoint.credited(line); })
      .def_property_readonly("fifo_bytes", [](const PyEndpoint& self) {
        std::size_t bytes = 0;
        for (const auto& line : self.endpoint.outgoing()) bytes += line->fifo.slots() * line->fifo.slot_bytes();
        for (const auto& line : self.endpoint.incoming()) bytes += line->fifo.slots() * line->fifo.slot_bytes();
        return bytes;
      });
}

}  // namespace teccl
