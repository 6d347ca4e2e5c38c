#include "prepared.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

namespace teccl::device {
namespace {

Protocol protocol_named(const std::string& name) {
  if (name == "Simple") return Protocol::simple;
  if (name == "LL") return Protocol::ll;
  if (name == "LL128") return Protocol::ll128;
  throw std::invalid_argument("protocol '" + name + "' is unknown");
}

}  // namespace

Prepared::Prepared(const Setting& given, ElementType type, Reduction reduction, const std::vector<Memory>& memory,
                   int only)
    : setting(given), type(type), reduction(reduction), protocol(protocol_named(given.program->protocol)), only(only) {
  require_executable(setting, memory);
  const Program& program = *setting.program;
  arenas.resize(program.gpus.size());

  // Counts before slots: a few bytes to clear before every use, and slots on lines of their own.
  std::map<Connection, std::int32_t> number;
  for (const auto& [connection, traffic] : traffic_of(setting)) {
    number[connection] = static_cast<std::int32_t>(lines_.size());
    const auto held = slot_bytes(protocol, traffic.longest_bytes);
    lines_.push_back({connection, 0, 0, 0, held, static_cast<std::uint64_t>(traffic.sent),
                      static_cast<std::uint64_t>(traffic.taken)});
  }
  const auto room_in = [&](int rank, std::size_t bytes) {
    std::size_t& end = arenas[static_cast<std::size_t>(rank)].bytes;
    const std::size_t at = end;
    end += bytes;
    return at;
  };
  for (Line& line : lines_) {
    line.pushed_at = room_in(line.connection.dst, kLineBytes);
    line.popped_at = room_in(line.connection.src, kLineBytes);
  }
  for (Line& line : lines_) line.slots_at = room_in(line.connection.dst, setting.slots * line.slot_bytes);

  std::set<int> touched;
  for (int rank = 0; rank < program.ranks(); ++rank) {
    const Gpu& gpu = program.gpus[static_cast<std::size_t>(rank)];
    const Memory& mine = memory[static_cast<std::size_t>(rank)];
    const auto output = static_cast<std::size_t>(Buffer::output);
    RankMemory flat{{mine.begin[0], mine.begin[1], mine.begin[2]},
                    mine.chunks[output] * setting.cut.chunk_elements,
                    0,
                    setting.scale && (setting.root < 0 || setting.root == rank)};
    if (only < 0 || only == rank) {
      touched.insert(rank);
      const auto base = static_cast<std::int32_t>(blocks.size());
      for (std::size_t tb = 0; tb < gpu.threadblocks.size(); ++tb) {
        const Threadblock& plan = gpu.threadblocks[tb];
        const auto line_of = [&](int src, int dst) {
          if (src < 0 || dst < 0) return -1;
          touched.insert({src, dst});
          return number.at({src, dst, plan.channel});
        };
        blocks.push_back({rank, static_cast<std::int32_t>(tb), static_cast<std::int32_t>(steps.size()),
                          static_cast<std::int32_t>(plan.steps.size()), line_of(plan.recv_peer, rank),
                          line_of(rank, plan.send_peer)});
        flat.blocks += !plan.steps.empty();
        for (const Step& step : plan.steps) {
          steps.push_back({static_cast<std::int32_t>(step.src_offset), static_cast<std::int32_t>(step.dst_offset),
                           static_cast<std::int32_t>(step.count), step.dep_tb < 0 ? -1 : base + step.dep_tb,
                           step.dep_step, static_cast<std::int8_t>(step.op), static_cast<std::int8_t>(step.src_buffer),
                           static_cast<std::int8_t>(step.dst_buffer), step.has_dep && step.op != Op::nop});
        }
      }
    }
    ranks.push_back(flat);
  }
  peers.assign(touched.begin(), touched.end());
}

std::vector<FlatLine> Prepared::lines_in(const std::vector<std::byte*>& begin) const {
  std::vector<FlatLine> flat;
  for (const Line& line : lines_) {
    std::byte* receiver = begin[static_cast<std::size_t>(line.connection.dst)];
    std::byte* sender = begin[static_cast<std::size_t>(line.connection.src)];
    FlatLine one{nullptr, nullptr, nullptr, line.slot_bytes, line.sent, line.taken};
    if (receiver && sender) {
      one.slots = receiver + line.slots_at;
      one.pushed = reinterpret_cast<std::uint64_t*>(receiver + line.pushed_at);
      one.popped = reinterpret_cast<std::uint64_t*>(sender + line.popped_at);
    }
    flat.push_back(one);
  }
  return flat;
}

Job Prepared::job() const {
  const Cut& cut = setting.cut;
  Job job{};
  job.chunk_elements = cut.chunk_elements;
  job.slice_elements = cut.slice_elements;
  job.iterations = cut.iterations;
  job.chunks_per_transfer = cut.chunks_per_transfer;
  job.slots = setting.slots;
  job.nblocks = static_cast<std::int32_t>(blocks.size());
  job.element_bytes = static_cast<std::int32_t>(cut.element_bytes);
  job.divisor = setting.program->ranks();
  job.type = static_cast<std::int8_t>(type);
  job.reduction = static_cast<std::int8_t>(reduction);
  job.protocol = protocol;
  return job;
}

std::vector<std::string> Prepared::lines_of(const std::vector<Stuck>& stuck) const {
  std::vector<std::string> lines;
  for (std::size_t block = 0; block < stuck.size(); ++block) {
    const Stuck& at = stuck[block];
    if (at.wait == Wait::nothing) continue;
    const FlatBlock& where = blocks[block];
    lines.push_back(describe(setting, where.rank, static_cast<std::size_t>(where.tb),
                             {at.iteration, at.step, at.transfer}, static_cast<teccl::Wait>(at.wait)));
  }
  return lines.empty() ? never_received(setting) : lines;
}

std::vector<Prepared::Timed> Prepared::named(const std::vector<StepTime>& times) const {
  std::uint64_t first = UINT64_MAX;
  for (const StepTime& time : times)
    if (time.end_ns) first = std::min(first, time.begin_ns);
  std::vector<Timed> all;
  for (const FlatBlock& block : blocks)
    for (std::int32_t step = 0; step < block.steps; ++step)
      if (const StepTime& time = times[static_cast<std::size_t>(block.first_step + step)]; time.end_ns)
        all.emplace_back(block.rank, block.tb, step, static_cast<double>(time.begin_ns - first) / 1e3,
                         static_cast<double>(time.end_ns - first) / 1e3);
  return all;
}

std::size_t Prepared::fifo_bytes() const {
  std::size_t bytes = 0;
  for (const Arena& arena : arenas) bytes += arena.bytes;
  return bytes;
}

}  // namespace teccl::device
