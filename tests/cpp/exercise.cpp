// Drives every part of the core on small programs and fields, for the sanitizers: interpreter, checker, program
// simulator, greedy search, schedule clock, routers. Exits with 1 and a line when an answer is wrong.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"
#include "cuda/host.hpp"
#include "endpoint.hpp"
#include "exchange.hpp"
#include "greedy.hpp"
#include "interpreter.hpp"
#include "dispatch.hpp"
#include "justify.hpp"
#include "packing.hpp"
#include "reroute.hpp"
#include "retime.hpp"
#include "routing.hpp"
#include "simulate_program.hpp"

namespace {

using namespace teccl;

void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
  std::exit(1);
}

struct At {
  Buffer buffer;
  std::int64_t chunk;
};
constexpr std::int32_t nobody = -1;

Step step(Op op, At src, At dst, std::int32_t dep_tb = -1, std::int32_t dep_step = -1, bool has_dep = false) {
  return {op, src.buffer, dst.buffer, src.chunk, dst.chunk, 1, dep_tb, dep_step, has_dep};
}

At input(std::int64_t chunk) { return {Buffer::input, chunk}; }
At output(std::int64_t chunk) { return {Buffer::output, chunk}; }
At scratch(std::int64_t chunk) { return {Buffer::scratch, chunk}; }

Program allreduce_of(int ranks, std::int64_t scratch_chunks, std::vector<std::vector<Threadblock>> threadblocks) {
  Program program{"allreduce", "Simple", 2, ranks, true, true, {}};
  for (auto& of_rank : threadblocks) program.gpus.push_back({ranks, ranks, scratch_chunks, std::move(of_rank)});
  return program;
}

// One threadblock a rank, every receiving step fused with what follows it.
Program fused_ring(int n) {
  std::vector<std::vector<Threadblock>> all;
  for (int rank = 0; rank < n; ++rank) {
    const auto chunk = [&](int hop) { return static_cast<std::int64_t>((rank - hop + 2 * n) % n); };
    Threadblock tb{(rank + 1) % n, (rank + n - 1) % n, 0, {step(Op::send, input(chunk(0)), output(0))}};
    for (int hop = 1; hop < n - 1; ++hop)
      tb.steps.push_back(step(Op::recv_reduce_send, input(chunk(hop)), output(0)));
    tb.steps.push_back(step(Op::recv_reduce_copy_send, input(chunk(n - 1)), output(chunk(n - 1))));
    for (int hop = n; hop < 2 * n - 2; ++hop)
      tb.steps.push_back(step(Op::recv_copy_send, input(0), output(chunk(hop))));
    tb.steps.push_back(step(Op::recv, input(0), output(chunk(2 * n - 2))));
    all.push_back({tb});
  }
  return allreduce_of(n, 0, std::move(all));
}

// Each rank gathers its share's summands in scratch, some by rrc and the last by r, nop and re, and hands out the sum.
Program staged(int n) {
  std::vector<std::vector<Threadblock>> all;
  for (int rank = 0; rank < n; ++rank) {
    std::vector<Threadblock> tbs{{nobody, nobody, 0, {step(Op::copy, input(rank), scratch(0), -1, -1, true)}}};
    std::int32_t last_tb = 0, last_step = 0;  // the newest sum
    std::vector<std::int32_t> sends;          // by distance
    for (int distance = 1; distance < n; ++distance) {
      const int peer = (rank + distance) % n;
      sends.push_back(static_cast<std::int32_t>(tbs.size()));
      tbs.push_back({peer, nobody, 0, {step(Op::send, input(peer), output(0), -1, -1, true)}});
      const auto receiving = static_cast<std::int32_t>(tbs.size());
      if (distance < n - 1) {
        tbs.push_back({nobody, peer, 0, {step(Op::recv_reduce_copy, scratch(0), scratch(0), last_tb, last_step, true)}});
        last_tb = receiving;
        last_step = 0;
      } else {
        tbs.push_back({nobody, peer, 0, {step(Op::recv, input(0), scratch(1), -1, -1, true)}});
        tbs.push_back({nobody, nobody, 0, {step(Op::nop, input(0), output(0), last_tb, last_step)}});
        tbs.back().steps.push_back(step(Op::reduce, scratch(1), scratch(0), receiving, 0, true));
        last_tb = receiving + 1;
        last_step = 1;
      }
    }
    tbs[static_cast<std::size_t>(last_tb)].steps.push_back(step(Op::copy, scratch(0), output(rank)));
    for (int distance = 1; distance < n; ++distance) {
      const int peer = (rank + distance) % n;
      const std::int32_t mine = sends[static_cast<std::size_t>(distance) - 1];
      tbs.push_back({peer, nobody, 1, {step(Op::send, scratch(0), output(0), last_tb, last_step)}});
      tbs.push_back({nobody, peer, 1, {step(Op::recv, input(0), output(peer), mine, 0)}});
    }
    all.push_back(std::move(tbs));
  }
  return allreduce_of(n, 2, std::move(all));
}

// -- interpreter ------------------------------------------------------------------------------------------------------

constexpr std::int64_t chunk_elements = 1000;

struct Buffers {
  std::vector<std::int32_t> input, output, scratch;
};

Setting setting_of(const Program& program, std::size_t slots, Reduction reduction, const Injection& injection) {
  return {&program,
          Cut(sizeof(std::int32_t), chunk_elements, 600),
          slots,
          combine_for(ElementType::int32, reduction),
          scale_for(ElementType::int32, reduction),
          -1,
          injection};
}

std::vector<Buffers> fresh(const Program& program) {
  std::vector<Buffers> all;
  for (int rank = 0; rank < program.ranks(); ++rank) {
    const auto elements = static_cast<std::size_t>(program.chunks_per_loop * chunk_elements);
    Buffers buffers{std::vector<std::int32_t>(elements), std::vector<std::int32_t>(elements, -1),
                    std::vector<std::int32_t>(static_cast<std::size_t>(2 * chunk_elements), -1)};
    for (std::size_t i = 0; i < elements; ++i) buffers.input[i] = static_cast<std::int32_t>(i) * (rank + 1);
    all.push_back(std::move(buffers));
  }
  return all;
}

std::vector<Memory> memory_of(std::vector<Buffers>& all) {
  std::vector<Memory> memory;
  for (Buffers& one : all) {
    const auto begin = [](std::vector<std::int32_t>& data) { return reinterpret_cast<std::byte*>(data.data()); };
    const auto chunks = [](const std::vector<std::int32_t>& data) {
      return static_cast<std::int64_t>(data.size()) / chunk_elements;
    };
    memory.push_back({{begin(one.input), begin(one.output), begin(one.scratch)},
                      {chunks(one.input), chunks(one.output), chunks(one.scratch)}});
  }
  return memory;
}

void require_sums(const std::vector<Buffers>& all, bool averaged, const std::string& what) {
  const auto n = static_cast<std::int32_t>(all.size());
  const std::int32_t weight = n * (n + 1) / 2;
  for (const Buffers& one : all)
    for (std::size_t i = 0; i < one.output.size(); ++i) {
      const std::int32_t sum = static_cast<std::int32_t>(i) * weight;
      require(one.output[i] == (averaged ? sum / n : sum), what + ", element " + std::to_string(i));
    }
}

void interpret(const Program& program, const std::string& name, std::size_t fewest_slots) {
  for (std::size_t slots : {std::size_t{1}, std::size_t{2}, std::size_t{8}})
    for (std::size_t workers : {std::size_t{1}, std::size_t{4}})
      for (bool faults : {false, true}) {
        if (slots < fewest_slots) continue;
        const Reduction reduction = faults ? Reduction::avg : Reduction::sum;
        const Setting setting = setting_of(program, slots, reduction, {faults, faults, false, faults, slots});
        std::vector<Buffers> buffers = fresh(program);
        World world(setting, memory_of(buffers));
        for (int again = 0; again < 2; ++again) {
          const auto outcome = world.run(workers, 60, [] { return false; });
          require(outcome.blocked.empty(), name + " stalls");
          require_sums(buffers, faults, name);
        }
      }
}

void stall(const Program& program) {
  const Setting setting = setting_of(program, 1, Reduction::sum, {});
  std::vector<Buffers> buffers = fresh(program);
  World world(setting, memory_of(buffers));
  require(!world.run(4, 0.1, [] { return false; }).blocked.empty(), "a fused ring with one slot goes through");
}

// The kernel's code, a thread for each of its threadblocks: twice, so that counts and flags go on.
void kernel(Program program, const std::string& name, std::size_t fewest_slots) {
  for (const char* protocol : {"Simple", "LL", "LL128"})
    for (std::size_t slots : {fewest_slots, std::size_t{8}}) {
      program.protocol = protocol;
      const Setting setting = setting_of(program, slots, Reduction::avg, {});
      std::vector<Buffers> buffers = fresh(program);
      device::HostRun run(device::Prepared(setting, ElementType::int32, Reduction::avg, memory_of(buffers), -1));
      for (int again = 0; again < 2; ++again) {
        require(run.run(60).blocked.empty(), name + " stalls in the kernel");
        require_sums(buffers, true, name + " in the kernel, " + protocol);
      }
      if (fewest_slots == 1) continue;
      const Setting tight = setting_of(program, 1, Reduction::sum, {});
      device::HostRun stalls(device::Prepared(tight, ElementType::int32, Reduction::sum, memory_of(buffers), -1));
      require(stalls.run(0.1).blocked.size() == program.gpus.size(), "one slot is enough for the kernel");
    }
}

// Every rank an endpoint, the messages carried between them by hand.
void carry(const Program& program, bool faults) {
  const Setting setting = setting_of(program, 2, Reduction::sum, {false, false, faults, false, 7});
  std::vector<Buffers> buffers = fresh(program);
  const std::vector<Memory> memory = memory_of(buffers);
  std::vector<std::unique_ptr<Endpoint>> ends;
  for (int rank = 0; rank < program.ranks(); ++rank) ends.push_back(std::make_unique<Endpoint>(setting, rank, memory));
  const auto line_of = [](const auto& lines, const Connection& wanted) {
    std::size_t line = 0;
    while (wanted < lines[line]->connection || lines[line]->connection < wanted) ++line;
    return line;
  };
  for (auto& end : ends) end->restart();
  std::map<Endpoint*, std::map<std::size_t, std::deque<Fifo::Message>>> waiting, asked;  // by rank and line
  for (bool finished = false; !finished;) {
    finished = true;
    for (auto& end : ends) {
      end->advance();
      for (const auto& parcel : end->departures()) {
        const auto& sent = *end->outgoing()[parcel.line];
        Endpoint& far = *ends[static_cast<std::size_t>(sent.connection.dst)];
        const std::size_t line = line_of(far.incoming(), sent.connection);
        waiting[&far][line].push_back(parcel.message);
      }
      for (const auto& landing : end->landings()) asked[end.get()][landing.line].push_back(landing.message);
      for (auto& [line, messages] : asked[end.get()])
        for (auto& come = waiting[end.get()][line]; !messages.empty() && !come.empty(); end->landed(line)) {
          require(messages.front().bytes == come.front().bytes, "a message is as long as its receiver expects");
          std::copy(come.front().begin, come.front().begin + come.front().bytes, messages.front().begin);
          messages.pop_front();
          come.pop_front();
        }
      for (std::size_t credit : end->credits()) {
        const Connection& connection = end->incoming()[credit]->connection;
        Endpoint& far = *ends[static_cast<std::size_t>(connection.src)];
        far.credited(line_of(far.outgoing(), connection));
      }
      finished = finished && end->finished();
    }
  }
  require_sums(buffers, false, "carried by hand");
}

// -- checker and simulators -------------------------------------------------------------------------------------------

void prove(const Program& program, std::int64_t min_credits) {
  const CheckReport report = check_program(program, {2, 71, 127, 20, -1});
  for (const Finding& finding : report.findings) require(!finding.error, finding.code + ": " + finding.text);
  require(report.min_credits == min_credits, "the fewest credits");
  Program broken = program;
  broken.gpus[0].threadblocks[0].steps[0].src_offset += 1;
  bool seen = false;
  for (const Finding& finding : check_program(broken, {2, 71, 127, 20, -1}).findings) seen = seen || finding.error;
  require(seen, "a chunk from the wrong place is not seen");
}

void simulate(const Program& program) {
  const int n = program.ranks();
  Transport transport;
  transport.links.assign(static_cast<std::size_t>(n * n), LinkFigures{0.5, 25});
  for (int rank = 0; rank < n; ++rank) {
    std::vector<Route> routes;
    for (const Threadblock& tb : program.gpus[static_cast<std::size_t>(rank)].threadblocks)
      routes.push_back(tb.send_peer < 0 ? Route{} : Route{{rank * n + tb.send_peer}, 0});
    transport.routes.push_back(routes);
  }
  transport.threadblock_GBps = 20;
  transport.credits = 2;
  transport.chunks_per_transfer = 1;
  transport.iterations = 3;
  transport.slice_bytes = transport.last_slice_bytes = 1e6;
  const ProgramTiming timing = simulate_program(program, transport);
  require(timing.blocked.empty() && timing.finish_us > 0 && !timing.critical_path.empty(), "a simulation hangs");
}

void search(int n) {
  Network network{n, {}, {}};
  for (int rank = 0; rank < n; ++rank)
    for (int peer : {(rank + 1) % n, (rank + n - 1) % n}) {
      network.paths.push_back({rank, peer, {static_cast<int>(network.links.size())}});
      network.links.push_back(LinkFigures{0.7, 25});
    }
  std::vector<int> everyone;
  for (int rank = 0; rank < n; ++rank) everyone.push_back(rank);
  std::vector<DemandedChunk> chunks;
  for (int rank = 0; rank < n; ++rank) chunks.push_back({1e6, false, {rank}, everyone});
  const double never = std::numeric_limits<double>::infinity();
  for (auto [noise, deadline] : {std::pair{0.0, never}, std::pair{0.1, never}, std::pair{0.0, 1.0}}) {
    std::vector<ChunkSend> sends = greedy(network, chunks, 1, noise, deadline);
    require(sends.size() == static_cast<std::size_t>(n * (n - 1)), "greedy sends a chunk more or less than once");
    retime(network, chunks, sends);
    dispatch(network, chunks, sends, std::vector<double>(sends.size(), 1.0));
    for (const ChunkSend& send : sends) require(send.arrival_us > send.start_us, "a send takes no time");
  }
  for (bool reduce : {false, true}) {
    if (reduce)
      for (DemandedChunk& chunk : chunks) chunk = {1e6, true, everyone, everyone};
    Packing trees = pack_trees(network, chunks, {0.1, 3, 0, 1});
    require(trees.sends.size() == static_cast<std::size_t>((reduce ? 2 : 1) * n * (n - 1)), "a tree does not span");
    const double played = justify(network, chunks, trees.sends, true, -1, 0, 1);
    const double better = justify(network, chunks, trees.sends, false, 2, 0.02, 1);
    const double best = reroute(network, chunks, trees.sends, {0, 50, true, 1});
    require(trees.busiest_us <= best && best <= better && better <= played, "a schedule got worse");
  }
}

// An allreduce by shared memory: every rank sums one part of each share and publishes it, in several rounds.
void share_memory(int ranks) {
  const std::int64_t share = 1003, n = ranks;
  const std::size_t bytes = Segment::bytes_for(2048);
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<std::vector<Line>> memory(static_cast<std::size_t>(ranks), std::vector<Line>(bytes / 64 + 1));
  std::vector<std::thread> threads;
  std::vector<std::vector<std::int64_t>> data;
  for (std::int64_t rank = 0; rank < n; ++rank) data.emplace_back(static_cast<std::size_t>(share), rank + 1);
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<Segment> segments;
      for (auto& each : memory) segments.emplace_back(reinterpret_cast<std::byte*>(each.data()), bytes);
      Exchange exchange{n, 1, 1, 0, n, {}};
      for (std::int64_t part = 0; part < n; ++part)
        if (part != rank) exchange.moves.push_back({part, {3 + rank, part}, {{1, part}}});
      Move sum{rank, {1, rank}, {{1, rank}}};
      for (std::int32_t other = 0; other < ranks; ++other)
        if (other != rank) sum.sources.push_back({3 + other, rank});
      exchange.moves.push_back(sum);
      exchange.moves.push_back({rank, {3 + rank, rank}, {{1, rank}}});
      for (std::int32_t other = 0; other < ranks; ++other)
        if (other != rank) exchange.moves.push_back({other, {1, other}, {{3 + other, other}}});
      SharedRanks shared(rank, segments, [](int) { return false; }, rank == 0 ? 100 : 0);
      const Pieces pieces{share, n, shared.rounds_for(exchange, share, 8), 8};
      require(pieces.rounds > 2, "shares that fit a bank");
      auto* mine = reinterpret_cast<std::byte*>(data[static_cast<std::size_t>(rank)].data());
      std::byte* const buffers[3] = {mine, mine, nullptr};
      shared.run(exchange, pieces, buffers, combine_for(ElementType::int64, Reduction::sum), 60, nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& row : data)
    for (std::int64_t value : row) require(value == n * (n + 1) / 2, "a sum through shared memory");
}

}  // namespace

namespace teccl::routing {

void route(int spines, bool broken) {
  constexpr int kTors = 4, kHosts = 8;
  Traffic traffic{{kTors, spines, kHosts, {}}, {}, 3};
  traffic.fabric.capacity.assign(static_cast<std::size_t>(traffic.fabric.links()), 1.0);
  if (broken) traffic.fabric.capacity[static_cast<std::size_t>(traffic.fabric.up(1, 0))] = 0;
  for (int i = 0; i < kTors * kHosts; ++i)
    traffic.flows.push_back({i, (i * 5 + kHosts) % (kTors * kHosts), 1.0 + i % 2, i % 3});
  const Routes none(traffic.flows.size(), kNone);
  std::vector<int> live;
  for (int s = 0; s < spines; ++s) live.push_back(s);
  const Routes first = greedy(traffic, none);
  std::vector<Routes> all{first, anneal(traffic, 7, 200)};
  if (!broken) {
    all.push_back(equitable(traffic, none, live));
    all.push_back(equitable(traffic, first, live));
  }
  for (Mode mode : {Mode::kCollective, Mode::kFlow, Mode::kStatic}) {
    all.push_back(polish(traffic, first, mode, 300, 20).routes);
    for (const Routes& routes : all)
      for (double rate : rates(traffic, routes, mode).collective) require(rate > 0, "a collective stands still");
  }
  std::vector<bool> some(traffic.flows.size());
  for (std::size_t f = 0; f < some.size(); f += 2) some[f] = true;
  require(rates_of_active(traffic, first, Mode::kFlow, some).flow[0] > 0, "an active flow stands still");
  for (const Routes& routes : all)
    for (std::size_t f = 0; f < routes.size(); ++f)
      require(traffic.crosses(f) ? traffic.may_use(f, routes[f]) : routes[f] == kNone, "a route over a dead link");
  const std::vector<int> colours = edge_colours(traffic);
  for (std::size_t f = 0; f < colours.size(); ++f)
    for (std::size_t g = 0; g < f; ++g)
      require(colours[f] == kNone || colours[f] != colours[g] ||
                  (traffic.from(f) != traffic.from(g) && traffic.to(f) != traffic.to(g)),
              "equal colours meet");
}

}  // namespace teccl::routing

int main() {
  const Program ring = fused_ring(4), stages = staged(4);
  interpret(ring, "fused ring", 2);
  interpret(stages, "staged allreduce", 1);
  stall(ring);
  kernel(ring, "fused ring", 2);
  kernel(stages, "staged allreduce", 1);
  for (bool faults : {false, true}) {
    carry(ring, faults);
    carry(stages, faults);
  }
  prove(ring, 2);
  prove(stages, 1);
  simulate(ring);
  simulate(stages);
  search(6);
  share_memory(4);
  for (int spines : {3, 4, 5}) {
    teccl::routing::route(spines, false);
    teccl::routing::route(spines, true);
  }
  std::puts("interpreter, checker, simulators, search, shared memory and routing: as expected");
}
