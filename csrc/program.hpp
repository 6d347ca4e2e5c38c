// A program: what every threadblock of every GPU does, as an MSCCL XML file says it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "both.hpp"

namespace teccl {

// The step types of the format. Which side of a step is local and which is the wire: see op_traits().
enum class Op : std::int8_t { send, recv, copy, reduce, recv_copy_send, recv_reduce_copy, recv_reduce_send,
                              recv_reduce_copy_send, nop };
enum class Buffer : std::int8_t { input, output, scratch };

struct OpTraits {
  bool reads_src;   // reads the local source range
  bool reads_dst;   // reads the local destination range too (reduce: dst += src)
  bool writes_dst;  // writes the local destination range
  bool receives;    // takes one message from the receive connection
  bool sends;       // puts one message on the send connection
};

TECCL_BOTH constexpr OpTraits op_traits(Op op) {
  //                                      reads_src reads_dst writes_dst receives sends
  switch (op) {
    case Op::send:                  return {true,  false, false, false, true};
    case Op::recv:                  return {false, false, true,  true,  false};
    case Op::copy:                  return {true,  false, true,  false, false};
    case Op::reduce:                return {true,  true,  true,  false, false};
    case Op::recv_copy_send:        return {false, false, true,  true,  true};
    case Op::recv_reduce_copy:      return {true,  false, true,  true,  false};
    case Op::recv_reduce_send:      return {true,  false, false, true,  true};
    case Op::recv_reduce_copy_send: return {true,  false, true,  true,  true};
    case Op::nop:                   return {false, false, false, false, false};
  }
  return {false, false, false, false, false};
}
const char* op_name(Op op);          // as the format spells it: "s", "r", "cpy", "re", …
const char* buffer_name(Buffer b);   // "i", "o", "s"

struct Step {
  Op op;
  Buffer src_buffer;
  Buffer dst_buffer;
  std::int64_t src_offset;  // in chunks
  std::int64_t dst_offset;
  std::int64_t count;       // chunks moved
  std::int32_t dep_tb;      // −1: waits for nothing
  std::int32_t dep_step;
  bool has_dep;             // some other step waits for this one
};

struct Threadblock {
  std::int32_t send_peer;  // −1: none
  std::int32_t recv_peer;
  std::int32_t channel;
  std::vector<Step> steps;
};

struct Gpu {
  std::int64_t input_chunks;
  std::int64_t output_chunks;
  std::int64_t scratch_chunks;
  std::vector<Threadblock> threadblocks;
};

struct Program {
  std::string collective;  // the design's spelling: allgather, reduce_scatter, …
  std::string protocol;    // Simple, LL or LL128
  std::int64_t channels;
  std::int64_t chunks_per_loop;
  bool in_place;
  bool out_of_place;
  std::vector<Gpu> gpus;

  int ranks() const { return static_cast<int>(gpus.size()); }
};

}  // namespace teccl
