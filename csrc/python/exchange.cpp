// Collectives among the ranks of one host: SharedRanks over memory that Python has mapped.
#include "exchange.hpp"

#ifdef __linux__
#include <poll.h>
#endif

#include <algorithm>
#include <stdexcept>

#include "module.hpp"

namespace py = pybind11;

namespace teccl {
namespace {

using PyWhere = std::pair<std::int32_t, std::int64_t>;
using PyMove = std::tuple<std::int64_t, PyWhere, std::vector<PyWhere>>;
using Bytes = py::array_t<std::uint8_t, py::array::c_style>;

Exchange exchange_of(int rank, int nranks, std::int64_t parts, std::int64_t input_shares, std::int64_t output_shares,
                     std::int64_t scratch, std::vector<std::int64_t> slots, const std::vector<PyMove>& moves) {
  if (parts < 1 || rank < 0 || rank >= nranks || slots.size() != static_cast<std::size_t>(nranks))
    throw std::invalid_argument("an exchange of no ranks or no parts");
  Exchange exchange{parts, input_shares, output_shares, scratch, *std::max_element(slots.begin(), slots.end()), {}};
  const auto checked = [&](const PyWhere& where, std::int64_t part) {
    const auto [from, position] = where;
    if (from < 0 || from >= 3 + nranks) throw std::invalid_argument("a piece of no rank");
    const std::int64_t end = from == 0   ? input_shares * parts
                             : from == 1 ? output_shares * parts
                             : from == 2 ? scratch
                                         : slots[static_cast<std::size_t>(from - 3)];
    if (position < 0 || position >= end || (from < 2 && position % parts != part))
      throw std::invalid_argument("a piece lies outside its buffer");
    return Where{from, position};
  };
  for (const auto& [part, at, sources] : moves) {
    if (part < 0 || part >= parts || sources.empty()) throw std::invalid_argument("a move of nothing");
    Move move{part, checked(at, part), {}};
    if (at.first >= 3 && at.first != 3 + rank) throw std::invalid_argument("a rank writes its own segment only");
    for (const PyWhere& source : sources) move.sources.push_back(checked(source, part));
    exchange.moves.push_back(std::move(move));
  }
  return exchange;
}

// Whether a process has ended, by its pidfd; −1: nobody knows.
bool ended(int pidfd) {
#ifdef __linux__
  pollfd question{pidfd, POLLIN, 0};
  return pidfd >= 0 && poll(&question, 1, 0) == 1;
#else
  static_cast<void>(pidfd);
  return false;
#endif
}

struct PySharedRanks {
  std::vector<Bytes> memory;  // kept alive
  SharedRanks ranks;

  static std::vector<Segment> segments(std::vector<Bytes>& memory) {
    std::vector<Segment> all;
    for (Bytes& each : memory)
      all.emplace_back(reinterpret_cast<std::byte*>(each.mutable_data()), static_cast<std::size_t>(each.nbytes()));
    return all;
  }
  PySharedRanks(int rank, std::vector<Bytes> given, const std::vector<int>& pidfds, int eager)
      : memory(std::move(given)),
        ranks(rank, segments(memory), [pidfds](int other) { return ended(pidfds.at(static_cast<std::size_t>(other))); },
              eager) {}
};

// Memory of a tensor: where it begins and how many bytes it has.
using Extent = std::pair<std::uintptr_t, std::size_t>;

std::byte* covering(const Extent& extent, std::size_t bytes) {
  if (extent.second < bytes) throw std::invalid_argument("a buffer is too small for the exchange");
  return reinterpret_cast<std::byte*>(extent.first);
}

std::vector<std::tuple<std::size_t, std::int64_t, double, double>> run(
    PySharedRanks& self, const Exchange& exchange, std::int64_t share, std::int64_t rounds, const std::string& dtype,
    const std::string& op, const Extent& input, const Extent& output, const Extent& scratch, double timeout,
    bool traced) {
  const ElementType element = element_type_named(dtype);
  const Pieces pieces{share, exchange.parts, rounds, element_bytes(element)};
  if (share < 1 || rounds < 1 || rounds < self.ranks.rounds_for(exchange, share, pieces.element_bytes))
    throw std::invalid_argument("too few rounds for the segments");
  const auto whole = static_cast<std::size_t>(share) * pieces.element_bytes;
  std::byte* const memory[3] = {covering(input, static_cast<std::size_t>(exchange.input_shares) * whole),
                                covering(output, static_cast<std::size_t>(exchange.output_shares) * whole),
                                covering(scratch, static_cast<std::size_t>(exchange.scratch) * pieces.stride())};
  Combine combine = op.empty() ? nullptr : combine_for(element, reduction_named(op));
  for (const Move& move : exchange.moves)
    if (move.sources.size() > 1 && combine == nullptr) throw std::invalid_argument(dtype + " is not combined");
  std::vector<SharedRanks::Traced> events;
  {
    py::gil_scoped_release release;
    self.ranks.run(exchange, pieces, memory, combine, timeout, traced ? &events : nullptr);
  }
  std::vector<std::tuple<std::size_t, std::int64_t, double, double>> told;
  for (const auto& event : events) told.emplace_back(event.move, event.bytes, event.begin, event.end);
  return told;
}

}  // namespace

void bind_exchange(py::module_& module) {
  py::class_<Exchange>(module, "Exchange")
      .def(py::init(&exchange_of), py::kw_only(), py::arg("rank"), py::arg("nranks"), py::arg("parts"),
           py::arg("input_shares"), py::arg("output_shares"), py::arg("scratch"), py::arg("slots"), py::arg("moves"))
      .def("scratch_bytes", [](const Exchange& self, std::int64_t share, std::int64_t rounds, std::size_t element_bytes) {
        return static_cast<std::size_t>(self.scratch) * Pieces{share, self.parts, rounds, element_bytes}.stride();
      });
  py::class_<PySharedRanks>(module, "SharedRanks")
      .def(py::init<int, std::vector<Bytes>, const std::vector<int>&, int>(), py::arg("rank"), py::arg("segments"),
           py::kw_only(), py::arg("pidfds"), py::arg("eager"))
      .def("rounds_for",
           [](const PySharedRanks& self, const Exchange& exchange, std::int64_t share, std::size_t element_bytes) {
             return self.ranks.rounds_for(exchange, share, element_bytes);
           })
      .def("run", &run, py::arg("exchange"), py::kw_only(), py::arg("share"), py::arg("rounds"), py::arg("dtype"),
           py::arg("op"), py::arg("input"), py::arg("output"), py::arg("scratch"), py::arg("timeout"),
           py::arg("traced"));
  module.def("segment_bytes", &Segment::bytes_for, py::arg("bank_bytes"));
}

}  // namespace teccl
