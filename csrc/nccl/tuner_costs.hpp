// What the tuner knows of machines: a plain-text file of simulated times, and one of a user's overrides.
//
//   # comment
//   machine NAME ranks=8 nodes=1                      what follows is for communicators of so many ranks and nodes
//   cost allreduce 65536 ring ll 21.5 channels=8 chunk=16384        bytes, µs; channels and chunk may be left out
//   use allreduce 0-65536 tree ll channels=2 chunk=4096             bytes from-to, both included; `-` alone: any size
//
// bytes count as NCCL's nBytes do: all ranks' shares for allgather and reduce_scatter, a rank's buffer for the others.
// `cost` lines of one algorithm and protocol are samples, between which times are linear in bytes; `use` lines decide
// before any cost, the last that serves a size first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tuner_abi.hpp"

namespace teccl::nccl {

struct Sample {
  double bytes, time_us;
  int channels;              // 0: NCCL's own
  std::size_t chunk_bytes;   // 0: NCCL's own
};

struct Override {
  int collective, algorithm, protocol;
  std::uint64_t from, to;  // bytes, both included
  int channels;
  std::size_t chunk_bytes;
};

// What is known for communicators of one shape.
struct Costs {
  std::string machine;
  std::size_t ranks = 0, nodes = 0;
  std::array<std::array<std::array<std::vector<Sample>, kProtocols>, kAlgorithms>, kCollectives> samples;  // by bytes
  std::vector<Override> overrides;

  // The time of so many bytes, negative where nothing is known. O(log samples).
  double time_us(int collective, int algorithm, int protocol, std::size_t bytes) const;
  // The sample whose channels and chunk serve so many bytes: the nearest by ratio. Null where nothing is known.
  const Sample* nearest(int collective, int algorithm, int protocol, std::size_t bytes) const;
  const Override* override_for(int collective, std::size_t bytes) const;
};

// Adds what `text` says for communicators of `ranks` and `nodes` to `costs`; whether it says anything for them.
// Throws std::invalid_argument with "NAME:LINE: what is wrong; how to mend it".
bool read_costs(const std::string& text, const std::string& name, std::size_t ranks, std::size_t nodes, Costs& costs);

}  // namespace teccl::nccl
