// How fast two ranks copy through the interpreter, against two plain threads doing the same by hand:
// source → 2 slots of 512 KiB → destination.
//
//   g++ -std=c++17 -O3 -Icsrc benchmarks/interpreter_copy.cpp csrc/{program,element,injection,interpreter*}.cpp -pthread -o copy
//   ./copy [MiB]
//
// Built with -fsanitize=thread it also runs an allgather of 8 ranks on 4 workers, for the sanitizer's sake.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "interpreter.hpp"

namespace {

constexpr std::size_t slot_bytes = 512 * 1024, slots = 2;
using Bytes = std::vector<std::byte>;

double seconds_of(const std::function<void()>& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void plain_copy(const Bytes& source, Bytes& destination) {
  static Bytes ring(slots * slot_bytes);
  std::atomic<std::size_t> filled{0}, emptied{0};
  const std::size_t messages = source.size() / slot_bytes;
  std::thread producer([&] {
    for (std::size_t k = 0; k < messages; ++k) {
      while (k - emptied.load(std::memory_order_acquire) == slots) std::this_thread::yield();
      std::memcpy(&ring[k % slots * slot_bytes], &source[k * slot_bytes], slot_bytes);
      filled.store(k + 1, std::memory_order_release);
    }
  });
  for (std::size_t k = 0; k < messages; ++k) {
    while (filled.load(std::memory_order_acquire) == k) std::this_thread::yield();
    std::memcpy(&destination[k * slot_bytes], &ring[k % slots * slot_bytes], slot_bytes);
    emptied.store(k + 1, std::memory_order_release);
  }
  producer.join();
}

teccl::Step step(teccl::Op op, std::int64_t dst_offset = 0) {
  return {op, teccl::Buffer::input, teccl::Buffer::output, 0, dst_offset, 1, -1, -1, false};
}

teccl::World::Outcome run(teccl::World& world, std::size_t workers) {
  auto outcome = world.run(workers, 60, [] { return false; });
  for (const auto& line : outcome.blocked) std::fprintf(stderr, "%s\n", line.c_str());
  if (!outcome.blocked.empty()) std::exit(1);
  return outcome;
}

// Each rank sends its input straight to every other.
void allgather(int ranks, std::size_t chunk_bytes, std::size_t workers) {
  teccl::Program program{"allgather", "Simple", 1, ranks, false, true, {}};
  std::vector<Bytes> inputs, outputs(static_cast<std::size_t>(ranks), Bytes(chunk_bytes * static_cast<std::size_t>(ranks)));
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.emplace_back(chunk_bytes, std::byte(rank + 1));
    teccl::Gpu gpu{1, ranks, 0, {{-1, -1, 0, {step(teccl::Op::copy, rank)}}}};
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == rank) continue;
      gpu.threadblocks.push_back({peer, -1, 0, {step(teccl::Op::send)}});
      gpu.threadblocks.push_back({-1, peer, 0, {step(teccl::Op::recv, peer)}});
    }
    program.gpus.push_back(gpu);
  }
  std::vector<teccl::Memory> memory;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank)
    memory.push_back({{inputs[rank].data(), outputs[rank].data(), nullptr}, {1, ranks, 0}});
  const teccl::Setting setting{&program, teccl::Cut(1, static_cast<std::int64_t>(chunk_bytes), 4096), slots,
                               teccl::combine_for(teccl::ElementType::uint8, teccl::Reduction::sum)};
  teccl::World world(setting, memory);
  for (int again = 0; again < 3; ++again) run(world, workers);
  for (const Bytes& output : outputs)
    for (std::size_t i = 0; i < output.size(); ++i)
      if (output[i] != std::byte(i / chunk_bytes + 1)) std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t bytes = static_cast<std::size_t>(argc > 1 ? std::atoi(argv[1]) : 256) << 20;
  Bytes source(bytes, std::byte{1}), destination(bytes), unused(bytes);

  teccl::Program program{"broadcast", "Simple", 1, 1, false, true, {}};
  program.gpus.push_back({1, 1, 0, {{1, -1, 0, {step(teccl::Op::send)}}}});
  program.gpus.push_back({1, 1, 0, {{-1, 0, 0, {step(teccl::Op::recv)}}}});
  const teccl::Setting setting{&program, teccl::Cut(1, static_cast<std::int64_t>(bytes), slot_bytes), slots,
                               teccl::combine_for(teccl::ElementType::uint8, teccl::Reduction::sum)};
  teccl::World world(setting, {{{source.data(), unused.data(), nullptr}, {1, 1, 0}},
                               {{unused.data(), destination.data(), nullptr}, {1, 1, 0}}});
  double plain = 1e9, interpreted = 1e9;
  for (int again = 0; again < 7; ++again) {  // in turn, so that both meet the same machine
    plain = std::min(plain, seconds_of([&] { plain_copy(source, destination); }));
    interpreted = std::min(interpreted, run(world, 2).seconds);
  }
  allgather(8, 50'000, 4);
  const double gigabytes = static_cast<double>(bytes) / 1e9;
  std::printf("plain threads %.2f GB/s, interpreter %.2f GB/s: %.0f %%\n", gigabytes / plain, gigabytes / interpreted,
              100 * plain / interpreted);
}
