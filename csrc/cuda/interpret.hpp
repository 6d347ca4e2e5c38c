// The kernel's code: one threadblock of a program, from its first step to its last. Meaning and order of the steps are
// those of csrc/interpreter.cpp; here every wait is a spin on memory and every transfer is moved by a group of threads.
#pragma once

#include "../program.hpp"
#include "job.hpp"
#include "pack.hpp"

namespace teccl::device {

// One transfer of a step: what is read and written, and the slots at either end.
struct Transfer {
  OpTraits traits;
  Op op;
  const std::byte* src;
  std::byte* dst;
  const std::byte* in;  // slot
  std::byte* out;
  std::uint64_t bytes;
  std::uint32_t in_flag, out_flag;  // LL and LL128: of this round of the slots
};

class Interpreter {
 public:
  TECCL_DEVICE Interpreter(const Job& job, std::int32_t block, Group group)
      : job_(job), block_(job.blocks[block]), number_(block), group_(group) {
    if (block_.in >= 0) taken_ = job.run * job.lines[block_.in].taken;
    if (block_.out >= 0) sent_ = job.run * job.lines[block_.out].sent;
  }

  TECCL_DEVICE void run() {
    Stuck at{0, 0, 0, Wait::nothing};
    for (; at.iteration < job_.iterations; ++at.iteration)
      for (at.step = 0; at.step < block_.steps; ++at.step)
        if (!run_step(at)) {
          if (group_.rank() == 0) job_.stuck[number_] = at;
          return;
        }
    if (block_.steps > 0) finish();
  }

 private:
  TECCL_DEVICE const FlatStep& step_at(std::int32_t step) const { return job_.steps[block_.first_step + step]; }

  TECCL_DEVICE bool run_step(Stuck& at) {
    const FlatStep& step = step_at(at.step);
    const auto op = static_cast<Op>(step.op);
    const std::int64_t transfers =
        op == Op::nop ? 1 : (step.count + job_.chunks_per_transfer - 1) / job_.chunks_per_transfer;
    for (at.transfer = 0; at.transfer < transfers; ++at.transfer) {
      at.wait = Wait::nothing;
      if (group_.rank() == 0) at.wait = wait_before(step, op, at);
      if (group_.any(at.wait != Wait::nothing)) return false;
      if (measures(at) && at.transfer == 0) job_.times[block_.first_step + at.step].begin_ns = nanoseconds();
      if (op == Op::nop) continue;
      const bool moved = move(step, op, at);
      if (group_.any(!moved)) {  // all is written, too
        at.wait = Wait::message;
        return false;
      }
      if (group_.rank() == 0) tell_ends(op);
      taken_ += op_traits(op).receives;
      sent_ += op_traits(op).sends;
    }
    if (measures(at)) job_.times[block_.first_step + at.step].end_ns = nanoseconds();
    if (group_.rank() == 0 && step.signals)
      store_release(job_.signalled + number_, steps_before(number_, at.iteration) + at.step + 1, false);
    return true;
  }

  TECCL_DEVICE bool measures(const Stuck& at) const { return job_.times && at.iteration == 0 && group_.rank() == 0; }

  // How many steps a block counts before an iteration of this run.
  TECCL_DEVICE std::uint64_t steps_before(std::int32_t block, std::int64_t iteration) const {
    return (job_.run * job_.iterations + iteration) * job_.blocks[block].steps;
  }

  // The first thread's: what it gave up waiting for.
  TECCL_DEVICE Wait wait_before(const FlatStep& step, Op op, const Stuck& at) {
    if (step.dep_block >= 0 && at.transfer == 0) {
      const std::uint64_t wanted = steps_before(step.dep_block, at.iteration) + step.dep_step + 1;
      if (!reaches(job_.signalled + step.dep_block, wanted, false)) return Wait::dependency;
    }
    const OpTraits traits = op_traits(op);
    // LL's and LL128's messages announce themselves.
    if (traits.receives && job_.protocol == Protocol::simple &&
        !reaches(job_.lines[block_.in].pushed, taken_ + 1, job_.whole_system))
      return Wait::message;
    if (traits.sends && sent_ >= job_.slots &&
        !reaches(job_.lines[block_.out].popped, sent_ - job_.slots + 1, job_.whole_system))
      return Wait::slot;
    return Wait::nothing;
  }

  TECCL_DEVICE bool reaches(const std::uint64_t* count, std::uint64_t wanted, bool whole_system) {
    return until([&] { return load_acquire(count, whole_system) >= wanted; });
  }

  // Spins until `ready()`; false where that lasts too long, here or for someone else.
  template <class Ready>
  TECCL_DEVICE bool until(const Ready& ready) {
    std::uint64_t begin = 0;
    for (unsigned spins = 0; !ready(); ++spins) {
      if (spins % 64 == 63) {
        const std::uint64_t now = nanoseconds();
        if (begin == 0) begin = now;
        if (load_relaxed(job_.stop)) return false;
        if (now - begin > job_.timeout_ns) {
          store_relaxed(job_.stop, 1);
          return false;
        }
      }
      pause(spins);
    }
    return true;
  }

  TECCL_DEVICE std::byte* at_chunk(std::int8_t buffer, std::int64_t chunk, std::int64_t iteration) const {
    const std::int64_t element = chunk * job_.chunk_elements + iteration * job_.slice_elements;
    return job_.ranks[block_.rank].begin[buffer] + element * job_.element_bytes;
  }

  TECCL_DEVICE bool move(const FlatStep& step, Op op, const Stuck& at) {
    const std::int64_t first = at.transfer * job_.chunks_per_transfer;
    const std::int64_t left = step.count - first;
    const std::int64_t chunks = left < job_.chunks_per_transfer ? left : job_.chunks_per_transfer;
    const std::int64_t rest = job_.chunk_elements - at.iteration * job_.slice_elements;
    const std::int64_t elements = chunks * (rest < job_.slice_elements ? rest : job_.slice_elements);

    Transfer t{};
    t.op = op;
    t.traits = op_traits(op);
    t.bytes = static_cast<std::uint64_t>(elements) * job_.element_bytes;
    if (t.traits.reads_src) t.src = at_chunk(step.src, step.src_offset + first, at.iteration);
    if (t.traits.writes_dst) t.dst = at_chunk(step.dst, step.dst_offset + first, at.iteration);
    if (t.traits.receives) {
      const FlatLine& line = job_.lines[block_.in];
      t.in = line.slots + taken_ % job_.slots * line.slot_bytes;
      t.in_flag = static_cast<std::uint32_t>(taken_ / job_.slots + 1);
    }
    if (t.traits.sends) {
      const FlatLine& line = job_.lines[block_.out];
      t.out = line.slots + sent_ % job_.slots * line.slot_bytes;
      t.out_flag = static_cast<std::uint32_t>(sent_ / job_.slots + 1);
    }
    if (job_.protocol == Protocol::simple || !(t.traits.receives || t.traits.sends)) return move_plainly(t);
    return job_.protocol == Protocol::ll ? move_ll(t) : move_ll128(t);
  }

  // What a transfer makes of a pack: of the one received, those that it reads, and to where.
  template <int n>
  TECCL_DEVICE Pack<n> result(const Transfer& t, const Pack<n>& received, const Pack<n>& src, const Pack<n>& dst) const {
    const auto type = static_cast<ElementType>(job_.type);
    const auto reduction = static_cast<Reduction>(job_.reduction);
    switch (t.op) {
      case Op::send:
      case Op::copy:                  return src;
      case Op::reduce:                return combined<n>(dst, src, type, reduction);
      case Op::recv_reduce_copy:
      case Op::recv_reduce_send:
      case Op::recv_reduce_copy_send: return combined<n>(received, src, type, reduction);
      default:                        return received;  // r, rcs
    }
  }

  // Simple: whole slots, and steps that stay in a rank's memory. Several packs under way at once hide the memory's
  // latency.
  TECCL_DEVICE bool move_plainly(const Transfer& t) {
    constexpr int n = 2, together = 4;
    constexpr std::uint64_t size = sizeof(Pack<n>);
    const bool src_aligned = whole_packs<n>(t.src), dst_aligned = whole_packs<n>(t.dst);
    const std::uint64_t packs = (t.bytes + size - 1) / size;
    for (std::uint64_t base = group_.rank(); base < packs; base += std::uint64_t{together} * group_.size()) {
      Pack<n> made[together];
#ifdef __CUDACC__
#pragma unroll
#endif
      for (int k = 0; k < together; ++k) {
        const std::uint64_t at = (base + std::uint64_t(k) * group_.size()) * size;
        if (at >= t.bytes) continue;
        const std::uint64_t bytes = t.bytes - at;
        Pack<n> received{}, src{}, dst{};
        if (t.traits.receives) received = load_pack<n>(t.in + at, bytes, true);
        if (t.traits.reads_src) src = load_pack<n>(t.src + at, bytes, src_aligned);
        if (t.traits.reads_dst) dst = load_pack<n>(t.dst + at, bytes, dst_aligned);
        made[k] = result<n>(t, received, src, dst);
      }
#ifdef __CUDACC__
#pragma unroll
#endif
      for (int k = 0; k < together; ++k) {
        const std::uint64_t at = (base + std::uint64_t(k) * group_.size()) * size;
        if (at >= t.bytes) continue;
        const std::uint64_t bytes = t.bytes - at;
        if (t.traits.writes_dst) store_pack<n>(t.dst + at, made[k], bytes, dst_aligned);
        if (t.traits.sends) store_pack<n>(t.out + at, made[k], bytes, true);
      }
    }
    return true;
  }

  TECCL_DEVICE Pack<1> local_result(const Transfer& t, std::uint64_t at, const Pack<1>& received) const {
    const std::uint64_t bytes = t.bytes - at;
    Pack<1> src{}, dst{};
    if (t.traits.reads_src) src = load_pack<1>(t.src + at, bytes, whole_packs<1>(t.src));
    if (t.traits.reads_dst) dst = load_pack<1>(t.dst + at, bytes, whole_packs<1>(t.dst));
    const Pack<1> made = result<1>(t, received, src, dst);
    if (t.traits.writes_dst) store_pack<1>(t.dst + at, made, bytes, whole_packs<1>(t.dst));
    return made;
  }

  // LL: every 8 bytes hold 4 of data and a flag, and are stored and loaded as one.
  TECCL_DEVICE bool move_ll(const Transfer& t) {
    const std::uint64_t packs = (t.bytes + 7) / 8;
    for (std::uint64_t pack = group_.rank(); pack < packs; pack += group_.size()) {
      Pack<1> received{};
      if (t.traits.receives) {
        const auto* line = reinterpret_cast<const std::uint64_t*>(t.in) + 2 * pack;
        std::uint64_t low = 0, high = 0;
        const bool come = until([&] {
          low = load_relaxed(line);
          high = load_relaxed(line + 1);
          return low >> 32 == t.in_flag && high >> 32 == t.in_flag;
        });
        if (!come) return false;
        received.word[0] = (low & 0xffffffffu) | high << 32;
      }
      const Pack<1> made = local_result(t, pack * 8, received);
      if (t.traits.sends) {
        auto* line = reinterpret_cast<std::uint64_t*>(t.out) + 2 * pack;
        const std::uint64_t flag = std::uint64_t{t.out_flag} << 32;
        store_relaxed(line, flag | (made.word[0] & 0xffffffffu));
        store_relaxed(line + 1, flag | made.word[0] >> 32);
      }
    }
    return true;
  }

  // LL128: lines of 15 words of data and one of flag, a line for each half warp. The flag is acquired and released: no
  // store of 128 bytes has to be one.
  TECCL_DEVICE bool move_ll128(const Transfer& t) {
    const std::uint64_t lines = (t.bytes + kLineData - 1) / kLineData;
    for (std::uint64_t line = group_.half(); line < lines; line += group_.halves()) {
      const auto* in = reinterpret_cast<const std::uint64_t*>(t.in) + line * 16;
      auto* out = reinterpret_cast<std::uint64_t*>(t.out) + line * 16;
      bool come = true;
      if (t.traits.receives && group_.lane() == 0)
        come = until([&] { return load_acquire(in + 15, job_.whole_system) == t.in_flag; });
      if (!group_.all_lanes(come)) return false;
      for (unsigned word = group_.lane(); word < 15; word += Group::kLanes) {
        const std::uint64_t at = line * kLineData + word * 8;
        if (at >= t.bytes) break;
        Pack<1> received{};
        if (t.traits.receives) received.word[0] = load_relaxed(in + word);
        const Pack<1> made = local_result(t, at, received);
        if (t.traits.sends) store_relaxed(out + word, made.word[0]);
      }
      group_.all_lanes(true);
      if (t.traits.sends && group_.lane() == 0) store_release(out + 15, t.out_flag, job_.whole_system);
    }
    return true;
  }

  // The first thread's: one message more at either end.
  TECCL_DEVICE void tell_ends(Op op) {
    const OpTraits traits = op_traits(op);
    if (traits.receives) store_release(job_.lines[block_.in].popped, taken_ + 1, job_.whole_system);
    if (traits.sends && job_.protocol == Protocol::simple)
      store_release(job_.lines[block_.out].pushed, sent_ + 1, job_.whole_system);
  }

  // The last block of a rank divides its output.
  TECCL_DEVICE void finish() {
    const RankMemory& rank = job_.ranks[block_.rank];
    bool last = false;
    if (group_.rank() == 0)
      last = add_one(job_.finished + block_.rank) + 1 == (job_.run + 1) * static_cast<std::uint64_t>(rank.blocks);
    if (!group_.any(last) || !rank.averages) return;
    divide_all(rank.begin[static_cast<int>(Buffer::output)], rank.output_elements, job_.divisor,
               static_cast<ElementType>(job_.type), group_);
  }

  const Job& job_;
  const FlatBlock& block_;
  std::int32_t number_;
  Group group_;
  std::uint64_t taken_ = 0, sent_ = 0;  // messages, over all runs
};

}  // namespace teccl::device
