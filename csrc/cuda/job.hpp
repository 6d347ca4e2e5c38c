// A run as flat tables: what the kernel is given. The same structs whether a GPU or the host's threads execute them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace teccl::device {

enum class Protocol : std::int8_t { simple, ll, ll128 };
enum class Wait : std::int8_t { nothing, dependency, message, slot };

struct FlatStep {
  std::int32_t src_offset, dst_offset, count;  // in chunks
  std::int32_t dep_block, dep_step;            // −1: waits for nothing
  std::int8_t op, src, dst;                    // teccl::Op, teccl::Buffer
  std::int8_t signals;                         // others wait for it
};

// A threadblock of the program, and so one of the kernel.
struct FlatBlock {
  std::int32_t rank, tb;
  std::int32_t first_step, steps;
  std::int32_t in, out;  // connections; −1: none
};

// A connection. Slots and the count of messages lie with the receiver, the count of what it took with the sender: each
// end spins on its own memory only. Counts go on from run to run.
struct FlatLine {
  std::byte* slots;
  std::uint64_t *pushed, *popped;
  std::uint64_t slot_bytes;         // as the protocol holds a message
  std::uint64_t sent, taken;        // messages of one run, at either end
};

struct RankMemory {
  std::byte* begin[3];          // teccl::Buffer's order
  std::int64_t output_elements;
  std::int32_t blocks;          // with steps, in this launch
  bool averages;                // divides its output by `divisor` when all of them are done
};

// Where a threadblock gave up.
struct Stuck {
  std::int64_t iteration, transfer;
  std::int32_t step;
  Wait wait;  // nothing: it finished
};

// When a step of the first iteration had all that it waited for, and when it was done.
struct StepTime {
  std::uint64_t begin_ns, end_ns;
};

struct Job {
  const FlatStep* steps;
  const FlatBlock* blocks;
  const FlatLine* lines;
  const RankMemory* ranks;
  std::uint64_t* signalled;    // by block; steps that others may wait for, over all runs
  std::uint64_t* finished;     // by rank; blocks, over all runs
  std::uint64_t* stop;         // one: set where a wait lasts too long, and seen by everyone
  Stuck* stuck;                // by block
  StepTime* times;             // by step; null: not measured
  std::int64_t chunk_elements, slice_elements, iterations, chunks_per_transfer;
  std::uint64_t run;           // how many came before
  std::uint64_t slots;
  std::uint64_t timeout_ns;    // of one wait
  std::int32_t nblocks, element_bytes, divisor;
  std::int8_t type, reduction;  // teccl::ElementType, teccl::Reduction
  Protocol protocol;
  bool whole_system;           // the far end may be another GPU
};

constexpr std::uint64_t kLineBytes = 128, kLineData = 120;

// The room that a message of so many bytes takes in a slot: LL puts a flag beside every 4 bytes, LL128 one after 120.
constexpr std::uint64_t slot_bytes(Protocol protocol, std::uint64_t bytes) {
  const std::uint64_t held = protocol == Protocol::ll      ? (bytes + 7) / 8 * 16
                             : protocol == Protocol::ll128 ? (bytes + kLineData - 1) / kLineData * kLineBytes
                                                           : bytes;
  return (held + kLineBytes - 1) / kLineBytes * kLineBytes;
}

}  // namespace teccl::device
