#include "interpreter.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace teccl {

Cut::Cut(std::size_t element_bytes, std::int64_t chunk_elements, std::size_t slot_bytes)
    : element_bytes(element_bytes), chunk_elements(chunk_elements) {
  const auto slot_elements = std::max<std::int64_t>(1, static_cast<std::int64_t>(slot_bytes / element_bytes));
  slice_elements = std::min(chunk_elements, slot_elements);
  iterations = (chunk_elements + slice_elements - 1) / slice_elements;
  chunks_per_transfer = std::clamp<std::int64_t>(slot_elements / slice_elements, 1, 71);
}

std::int64_t Cut::elements_in(std::int64_t iteration) const {
  return std::min(slice_elements, chunk_elements - iteration * slice_elements);
}

std::int64_t Cut::transfers_of(const Step& step) const {
  return step.op == Op::nop ? 1 : (step.count + chunks_per_transfer - 1) / chunks_per_transfer;
}

// -- one rank -----------------------------------------------------------------------------------------------------

Rank::Rank(const Setting& setting, int rank, const Memory& memory, const FifoOf& fifo, StepFlags lends)
    : setting_(setting),
      rank_(rank),
      memory_(memory),
      lends_(std::move(lends)),
      lanes_(setting.program->gpus[static_cast<std::size_t>(rank)].threadblocks.size()) {
  if (setting.injection.any()) mischief_.emplace(setting.injection, rank, lanes_.size());
  const auto& threadblocks = setting.program->gpus[static_cast<std::size_t>(rank)].threadblocks;
  for (std::size_t tb = 0; tb < lanes_.size(); ++tb) {
    const Threadblock& plan = threadblocks[tb];
    lanes_[tb].plan = &plan;
    if (plan.send_peer >= 0) lanes_[tb].out = fifo({rank, plan.send_peer, plan.channel});
    if (plan.recv_peer >= 0) lanes_[tb].in = fifo({plan.recv_peer, rank, plan.channel});
  }
  restart();
}

void Rank::restart() {
  unfinished_ = 0;
  for (Lane& lane : lanes_) {
    lane.iteration = lane.step = lane.transfer = 0;
    lane.finished = lane.plan->steps.empty();
    lane.signalled.store(0, std::memory_order_relaxed);
    unfinished_ += !lane.finished;
  }
}

std::int64_t Rank::advance() {
  std::int64_t done = 0;
  if (mischief_) {
    done = run_with(*mischief_);
  } else {
    for (Lane& lane : lanes_) done += run_until_blocked(lane);
  }
  if (done > 0)
    progress_.store(progress_.load(std::memory_order_relaxed) + static_cast<std::uint64_t>(done),
                    std::memory_order_relaxed);
  return done;
}

std::int64_t Rank::run_until_blocked(Lane& lane) {
  std::int64_t done = 0;
  for (; !lane.finished && waits_for(lane) == Wait::nothing; ++done) transfer(lane);
  return done;
}

std::int64_t Rank::run_with(Mischief& mischief) {
  std::int64_t done = 0;
  for (std::size_t tb : mischief.round()) {
    Lane& lane = lanes_[tb];
    if (lane.finished || waits_for(lane) != Wait::nothing) continue;
    if (!mischief.lets(tb, op_traits(lane.now().op).receives)) continue;
    transfer(lane);
    ++done;
    if (mischief.moved(tb)) break;
  }
  return done;
}

bool Rank::dependency_met(const Lane& lane) const {
  const Step& step = lane.now();
  if (step.dep_tb < 0 || lane.transfer > 0) return true;
  const Lane& other = lanes_[static_cast<std::size_t>(step.dep_tb)];
  const auto steps = static_cast<std::int64_t>(other.plan->steps.size());
  return other.signalled.load(std::memory_order_acquire) >= lane.iteration * steps + step.dep_step + 1;
}

Wait Rank::waits_for(const Lane& lane) const {
  if (!dependency_met(lane)) return Wait::dependency;
  const OpTraits traits = op_traits(lane.now().op);
  if (traits.receives && lane.in->empty()) return Wait::message;
  if (traits.sends && lane.out->full()) return Wait::slot;
  return Wait::nothing;
}

std::byte* Rank::at(Buffer buffer, std::int64_t chunk, std::int64_t iteration) const {
  const Cut& cut = setting_.cut;
  const std::int64_t element = chunk * cut.chunk_elements + iteration * cut.slice_elements;
  return memory_.begin[static_cast<std::size_t>(buffer)] + static_cast<std::size_t>(element) * cut.element_bytes;
}

std::byte* Rank::destination(const Step& step, std::int64_t iteration, std::int64_t transfer) const {
  return at(step.dst_buffer, step.dst_offset + transfer * setting_.cut.chunks_per_transfer, iteration);
}

std::size_t Rank::message_bytes(const Step& step, std::int64_t iteration, std::int64_t transfer) const {
  const Cut& cut = setting_.cut;
  const std::int64_t chunks = std::min(cut.chunks_per_transfer, step.count - transfer * cut.chunks_per_transfer);
  return static_cast<std::size_t>(chunks * cut.elements_in(iteration)) * cut.element_bytes;
}

bool Rank::lends(const Lane& lane) const {
  return !lends_.empty() &&
         lends_[static_cast<std::size_t>(lane.plan - lanes_.front().plan)][static_cast<std::size_t>(lane.step)];
}

bool Rank::may_write(std::size_t tb, std::int64_t iteration, std::int64_t step) const {
  const Lane& lane = lanes_[tb];
  return !lane.finished && lane.iteration == iteration && lane.step == step && dependency_met(lane);
}

void Rank::transfer(Lane& lane) {
  const Step& step = lane.now();
  if (step.op == Op::nop) return go_on(lane);

  // One piece of memory: either the chunks are whole and lie one after another, or a transfer has one of them (Cut).
  const OpTraits traits = op_traits(step.op);
  const std::int64_t first = lane.transfer * setting_.cut.chunks_per_transfer;
  const std::size_t bytes = message_bytes(step, lane.iteration, lane.transfer);
  const std::size_t elements = bytes / setting_.cut.element_bytes;

  // Offsets a step does not use may be anything: never make a pointer from them.
  std::byte* src = traits.reads_src ? at(step.src_buffer, step.src_offset + first, lane.iteration) : nullptr;
  std::byte* dst = traits.writes_dst ? destination(step, lane.iteration, lane.transfer) : nullptr;
  const std::byte* in = traits.receives ? lane.in->front() : nullptr;
  std::byte* lent = !traits.sends || !lends(lane) ? nullptr : step.op == Op::send ? src : dst;
  std::byte* out = !traits.sends ? nullptr : lent ? lent : lane.out->back();
  const auto copy = [bytes](std::byte* to, const std::byte* from) {
    if (to != from) std::memmove(to, from, bytes);  // in place, landed where it belongs or lent, they are the same
  };
  switch (step.op) {
    case Op::send: copy(out, src); break;
    case Op::recv: copy(dst, in); break;
    case Op::copy: copy(dst, src); break;
    case Op::reduce: setting_.combine(dst, dst, src, elements); break;
    case Op::recv_copy_send: copy(dst, in); copy(out, dst); break;
    case Op::recv_reduce_copy: setting_.combine(dst, in, src, elements); break;
    case Op::recv_reduce_send: setting_.combine(out, in, src, elements); break;
    case Op::recv_reduce_copy_send: setting_.combine(out, in, src, elements); copy(dst, out); break;
    case Op::nop: break;
  }
  if (traits.receives) lane.in->pop();
  if (traits.sends) lane.out->lend(out, bytes);
  go_on(lane);
}

void Rank::go_on(Lane& lane) {
  const Step& step = lane.now();
  if (++lane.transfer < setting_.cut.transfers_of(step)) return;
  lane.transfer = 0;
  const auto steps = static_cast<std::int64_t>(lane.plan->steps.size());
  // As in the runtimes: only a step marked hasdep is seen by others, and a nop never is.
  if (step.has_dep && step.op != Op::nop)
    lane.signalled.store(lane.iteration * steps + lane.step + 1, std::memory_order_release);
  if (++lane.step < steps) return;
  lane.step = 0;
  if (++lane.iteration < setting_.cut.iterations) return;
  lane.finished = true;
  if (--unfinished_ == 0) average();
}

void Rank::average() {
  if (!setting_.scale || (setting_.root >= 0 && setting_.root != rank_)) return;
  const auto output = static_cast<std::size_t>(Buffer::output);
  const auto elements = static_cast<std::size_t>(memory_.chunks[output] * setting_.cut.chunk_elements);
  setting_.scale(memory_.begin[output], elements, setting_.program->ranks());
}

// -- what a stall looks like ----------------------------------------------------------------------------------------

std::vector<std::string> Rank::blocked() const {
  std::vector<std::string> lines;
  for (std::size_t tb = 0; tb < lanes_.size(); ++tb)
    if (const Lane& lane = lanes_[tb]; !lane.finished)
      lines.push_back(describe(setting_, rank_, tb, {lane.iteration, lane.step, lane.transfer}, waits_for(lane)));
  return lines;
}

std::string describe(const Setting& setting, int rank, std::size_t tb, const Cursor& at, Wait wait) {
  const auto& threadblocks = setting.program->gpus[static_cast<std::size_t>(rank)].threadblocks;
  const Threadblock& plan = threadblocks[tb];
  const Step& step = plan.steps[static_cast<std::size_t>(at.step)];
  const auto number = [](std::int64_t n) { return std::to_string(n); };
  std::string line = "rank " + number(rank) + " tb " + number(static_cast<std::int64_t>(tb)) + " step " +
                     number(at.step) + " (" + op_name(step.op) + ")";
  if (setting.cut.iterations > 1)
    line += " iteration " + number(at.iteration) + " of " + number(setting.cut.iterations);
  if (setting.cut.transfers_of(step) > 1)
    line += " transfer " + number(at.transfer) + " of " + number(setting.cut.transfers_of(step));
  switch (wait) {
    case Wait::dependency: {
      line += " waits for tb " + number(step.dep_tb) + " step " + number(step.dep_step);
      const auto& awaited = threadblocks[static_cast<std::size_t>(step.dep_tb)].steps;
      const auto raised = [](const Step& s) { return s.has_dep && s.op != Op::nop; };
      if (std::none_of(awaited.begin() + step.dep_step, awaited.end(), raised)) line += ", which never sets hasdep";
      return line;
    }
    case Wait::message:
      return line + " waits for a message from rank " + number(plan.recv_peer) + " on channel " + number(plan.channel);
    case Wait::slot:
      return line + " waits for a free slot to rank " + number(plan.send_peer) + " on channel " +
             number(plan.channel) + " (" + number(static_cast<std::int64_t>(setting.slots)) + " in flight)";
    case Wait::nothing: break;
  }
  return line + " can go on";
}

}  // namespace teccl
