// What must hold before a program may touch memory: every access in range, every connection owned and matched.
#include <algorithm>
#include <stdexcept>

#include "interpreter.hpp"

namespace teccl {
namespace {

using Counts = std::vector<std::int64_t>;  // chunks of the 1st, 2nd, … step on one end of a connection

std::string place(std::size_t gpu, std::size_t tb) { return "gpu " + std::to_string(gpu) + " tb " + std::to_string(tb); }

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw std::invalid_argument(where + ": " + what);
}

void require_range(const std::string& where, const char* verb, Buffer buffer, std::int64_t offset, std::int64_t count,
                   std::int64_t declared, std::int64_t real) {
  const std::int64_t chunks = std::min(declared, real);
  if (offset >= 0 && offset <= chunks - count) return;
  const std::string name = buffer_name(buffer);
  refuse(where, std::string(verb) + " " + name + "[" + std::to_string(offset) + ".." +
                    std::to_string(offset + count - 1) + "] but " + name + " has " + std::to_string(chunks) +
                    " chunks" + (declared > real ? " in this collective" : "") + "; mend the offset, cnt or " + name +
                    "_chunks");
}

bool reduces(Op op) {
  return op == Op::reduce || op == Op::recv_reduce_copy || op == Op::recv_reduce_send || op == Op::recv_reduce_copy_send;
}

void require_step(const std::string& where, const Step& step, const Threadblock& tb, const Gpu& gpu,
                  const Memory& memory, bool combines) {
  const OpTraits traits = op_traits(step.op);
  if (!combines && reduces(step.op))
    refuse(where, std::string(op_name(step.op)) + " combines elements, but 8-bit floats are for copies only");
  if (step.op != Op::nop && step.count < 1) refuse(where, "cnt is " + std::to_string(step.count) + "; use 1..71");
  if (traits.sends && tb.send_peer < 0) refuse(where, std::string(op_name(step.op)) + " sends, but the tb has send=-1");
  if (traits.receives && tb.recv_peer < 0)
    refuse(where, std::string(op_name(step.op)) + " receives, but the tb has recv=-1");
  const std::int64_t declared[] = {gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks};
  const auto src = static_cast<std::size_t>(step.src_buffer), dst = static_cast<std::size_t>(step.dst_buffer);
  if (traits.reads_src)
    require_range(where, "reads", step.src_buffer, step.src_offset, step.count, declared[src], memory.chunks[src]);
  if (traits.writes_dst)
    require_range(where, "writes", step.dst_buffer, step.dst_offset, step.count, declared[dst], memory.chunks[dst]);
  if (step.dep_tb < 0) return;
  if (static_cast<std::size_t>(step.dep_tb) >= gpu.threadblocks.size())
    refuse(where, "depends on tb " + std::to_string(step.dep_tb) + ", which does not exist; mend depid");
  const auto steps = gpu.threadblocks[static_cast<std::size_t>(step.dep_tb)].steps.size();
  if (step.dep_step < 0 || static_cast<std::size_t>(step.dep_step) >= steps)
    refuse(where, "depends on tb " + std::to_string(step.dep_tb) + " step " + std::to_string(step.dep_step) +
                      ", but that tb has " + std::to_string(steps) + " steps; mend deps");
}

// The counts of every connection's sends (or receives), with one owner each.
class Ends {
 public:
  void own(const Connection& connection, const std::string& where) {
    const auto [owner, fresh] = owner_.try_emplace(connection, where);
    if (!fresh)
      refuse(where, "the connection " + name(connection) + " belongs to " + owner->second +
                        " already; use another channel");
  }
  void add(const Connection& connection, std::int64_t count) { counts_[connection].push_back(count); }
  const Counts& of(const Connection& connection) const {
    static const Counts none;
    const auto found = counts_.find(connection);
    return found == counts_.end() ? none : found->second;
  }
  const std::map<Connection, Counts>& all() const { return counts_; }

  static std::string name(const Connection& c) {
    return std::to_string(c.src) + "→" + std::to_string(c.dst) + " on channel " + std::to_string(c.channel);
  }

 private:
  std::map<Connection, std::string> owner_;
  std::map<Connection, Counts> counts_;
};

void require_peer(const std::string& where, const char* what, std::int32_t peer, std::size_t gpu, int ranks) {
  if (peer < -1 || peer >= ranks)
    refuse(where, std::string(what) + "=" + std::to_string(peer) + "; use a rank 0.." + std::to_string(ranks - 1) +
                      " or -1");
  if (peer == static_cast<std::int32_t>(gpu)) refuse(where, std::string(what) + " names the gpu itself; use cpy");
}

}  // namespace

void require_executable(const Setting& setting, const std::vector<Memory>& memory) {
  const Program& program = *setting.program;
  Ends sends, receives;
  for (std::size_t g = 0; g < program.gpus.size(); ++g) {
    const Gpu& gpu = program.gpus[g];
    for (std::size_t t = 0; t < gpu.threadblocks.size(); ++t) {
      const Threadblock& tb = gpu.threadblocks[t];
      const std::string where = place(g, t);
      require_peer(where, "send", tb.send_peer, g, program.ranks());
      require_peer(where, "recv", tb.recv_peer, g, program.ranks());
      // MPI promises tags up to 32767, and a connection needs two.
      if (tb.channel < 0 || tb.channel >= 16384) refuse(where, "chan=" + std::to_string(tb.channel) + "; use 0..31");
      const Connection out{static_cast<std::int32_t>(g), tb.send_peer, tb.channel};
      const Connection in{tb.recv_peer, static_cast<std::int32_t>(g), tb.channel};
      if (tb.send_peer >= 0) sends.own(out, where);
      if (tb.recv_peer >= 0) receives.own(in, where);
      for (std::size_t s = 0; s < tb.steps.size(); ++s) {
        const Step& step = tb.steps[s];
        require_step(where + " step " + std::to_string(s), step, tb, gpu, memory[g], setting.combine);
        if (op_traits(step.op).sends) sends.add(out, step.count);
        if (op_traits(step.op).receives) receives.add(in, step.count);
      }
    }
  }
  for (const auto& [connection, sent] : sends.all()) {
    const Counts& taken = receives.of(connection);
    for (std::size_t k = 0; k < std::min(sent.size(), taken.size()); ++k)
      if (sent[k] != taken[k])
        refuse(Ends::name(connection), "message " + std::to_string(k) + " is sent with cnt " +
                                           std::to_string(sent[k]) + " and received with cnt " +
                                           std::to_string(taken[k]) + "; make them equal");
  }
}

Setting setting_of(const Program& program, const std::string& type, const std::string& reduction,
                   std::int64_t chunk_elements, std::size_t slots, std::size_t slot_bytes, int root) {
  if (chunk_elements < 1 || slots < 1 || slot_bytes < 1)
    throw std::invalid_argument("chunk_elements, slots and slot_bytes must be 1 or more");
  const ElementType element = element_type_named(type);
  const Reduction combined = reduction_named(reduction);
  return {&program,
          Cut(element_bytes(element), chunk_elements, slot_bytes),
          slots,
          combine_for(element, combined),
          scale_for(element, combined),
          root,
          {}};
}

std::map<Connection, Traffic> traffic_of(const Setting& setting) {
  std::map<Connection, Traffic> traffic;
  const Cut& cut = setting.cut;
  for (int rank = 0; rank < setting.program->ranks(); ++rank) {
    for (const Threadblock& tb : setting.program->gpus[static_cast<std::size_t>(rank)].threadblocks) {
      Traffic* out = tb.send_peer < 0 ? nullptr : &traffic[{rank, tb.send_peer, tb.channel}];
      Traffic* in = tb.recv_peer < 0 ? nullptr : &traffic[{tb.recv_peer, rank, tb.channel}];
      for (const Step& step : tb.steps) {
        const OpTraits traits = op_traits(step.op);
        const std::int64_t messages = cut.transfers_of(step) * cut.iterations;
        if (traits.receives) in->taken += messages;
        if (!traits.sends) continue;
        out->sent += messages;
        const std::int64_t elements = std::min(step.count, cut.chunks_per_transfer) * cut.slice_elements;
        out->longest_bytes = std::max(out->longest_bytes, static_cast<std::size_t>(elements) * cut.element_bytes);
      }
    }
  }
  return traffic;
}

std::vector<std::string> never_received(const Setting& setting) {
  std::vector<std::string> lines;
  for (const auto& [connection, traffic] : traffic_of(setting))
    if (traffic.sent > traffic.taken)
      lines.push_back("rank " + std::to_string(connection.dst) + " never receives the last " +
                      std::to_string(traffic.sent - traffic.taken) + " message(s) from rank " +
                      std::to_string(connection.src) + " on channel " + std::to_string(connection.channel));
  return lines;
}

}  // namespace teccl
