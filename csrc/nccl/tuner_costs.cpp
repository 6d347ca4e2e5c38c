#include "tuner_costs.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace teccl::nccl {
namespace {

constexpr std::array<const char*, kCollectives> collectives{"broadcast", "reduce", "allgather", "reduce_scatter",
                                                            "allreduce"};
constexpr std::array<const char*, kAlgorithms> algorithms{"tree", "ring",      "collnet_direct", "collnet_chain",
                                                          "nvls", "nvls_tree", "pat"};
constexpr std::array<const char*, kProtocols> protocols{"ll", "ll128", "simple"};
constexpr int kMostChannels = 128;

// One line's words, each taken once, and errors that say where. No streams: their locales are the process's, whose C++
// library may be another than this one's.
class Line {
 public:
  Line(const std::string& text, std::string where) : where_(std::move(where)) {
    const char* spaces = " \t\r\v\f";
    const std::string said = text.substr(0, text.find('#'));
    for (std::size_t at = said.find_first_not_of(spaces); at != std::string::npos;) {
      const std::size_t end = std::min(said.find_first_of(spaces, at), said.size());
      words_.push_back(said.substr(at, end - at));
      at = said.find_first_not_of(spaces, end);
    }
  }
  bool empty() const { return next_ == words_.size(); }

  std::string word(const char* what) {
    if (empty()) refuse(std::string("no ") + what);
    return words_[next_++];
  }
  template <std::size_t n>
  int one_of(const std::array<const char*, n>& names, const char* what) {
    const std::string name = word(what);
    for (std::size_t i = 0; i < n; ++i)
      if (name == names[i]) return static_cast<int>(i);
    std::string known;
    for (const char* each : names) known += std::string(known.empty() ? "" : ", ") + each;
    refuse(what + (" '" + name + "'; use " + known));
  }
  std::uint64_t whole(const std::string& text, std::uint64_t least, std::uint64_t most) {
    const bool digits = !text.empty() && text.size() < 20 && text.find_first_not_of("0123456789") == std::string::npos;
    const std::uint64_t number = digits ? std::stoull(text) : 0;
    if (!digits || number < least || number > most)
      refuse("'" + text + "'; use " + std::to_string(least) + ".." + std::to_string(most));
    return number;
  }
  double positive(const std::string& text) {
    double number = 0;
    const char* end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, number);
    if (read.ec != std::errc() || read.ptr != end || !std::isfinite(number) || number <= 0)
      refuse("'" + text + "'; use a time in µs, more than 0");
    return number;
  }
  // The number of `name=NUMBER`, if that is the next word; else `otherwise`.
  std::uint64_t option(const std::string& name, std::uint64_t least, std::uint64_t most, std::uint64_t otherwise) {
    if (empty() || words_[next_].compare(0, name.size() + 1, name + "=") != 0) return otherwise;
    return whole(words_[next_++].substr(name.size() + 1), least, most);
  }
  void end() {
    if (!empty()) refuse("'" + words_[next_] + "' after the end of the line; remove it");
  }
  [[noreturn]] void refuse(const std::string& what) const { throw std::invalid_argument(where_ + ": " + what); }

 private:
  std::string where_;
  std::vector<std::string> words_;
  std::size_t next_ = 0;
};

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 50;

void read_cost(Line& line, Costs* costs) {
  const int collective = line.one_of(collectives, "collective");
  const auto bytes = static_cast<double>(line.whole(line.word("size in bytes"), 1, kMostBytes));
  const int algorithm = line.one_of(algorithms, "algorithm");
  const int protocol = line.one_of(protocols, "protocol");
  const double time_us = line.positive(line.word("time in µs"));
  const auto channels = static_cast<int>(line.option("channels", 1, kMostChannels, 0));
  const std::size_t chunk = line.option("chunk", 1, kMostBytes, 0);
  line.end();
  if (!costs) return;
  auto& samples = costs->samples[static_cast<std::size_t>(collective)][static_cast<std::size_t>(algorithm)]
                                [static_cast<std::size_t>(protocol)];
  const auto at = std::lower_bound(samples.begin(), samples.end(), bytes,
                                   [](const Sample& sample, double size) { return sample.bytes < size; });
  if (at != samples.end() && at->bytes == bytes) line.refuse("the same size has a time already; remove one");
  samples.insert(at, {bytes, time_us, channels, chunk});
}

void read_use(Line& line, Costs* costs) {
  Override chosen{};
  chosen.collective = line.one_of(collectives, "collective");
  const std::string sizes = line.word("range of bytes");
  const std::size_t dash = sizes.find('-');
  if (dash == std::string::npos) line.refuse("'" + sizes + "'; use FROM-TO in bytes, or - for any size");
  const std::string from = sizes.substr(0, dash), to = sizes.substr(dash + 1);
  chosen.from = from.empty() ? 0 : line.whole(from, 0, kMostBytes);
  chosen.to = to.empty() ? std::numeric_limits<std::uint64_t>::max() : line.whole(to, chosen.from, kMostBytes);
  chosen.algorithm = line.one_of(algorithms, "algorithm");
  chosen.protocol = line.one_of(protocols, "protocol");
  chosen.channels = static_cast<int>(line.option("channels", 1, kMostChannels, 0));
  chosen.chunk_bytes = line.option("chunk", 1, kMostBytes, 0);
  line.end();
  if (costs) costs->overrides.push_back(chosen);
}

}  // namespace

bool read_costs(const std::string& text, const std::string& name, std::size_t ranks, std::size_t nodes, Costs& costs) {
  bool everyone = true, mine = false;  // before the first `machine`, lines are for all
  std::size_t number = 0;
  for (std::size_t at = 0, end; at < text.size(); at = end + 1) {
    end = std::min(text.find('\n', at), text.size());
    Line line(text.substr(at, end - at), name + ":" + std::to_string(++number));
    if (line.empty()) continue;
    const std::string verb = line.word("word");
    if (verb == "machine") {
      const std::string machine = line.word("name");
      const std::uint64_t its_ranks = line.option("ranks", 1, kMostBytes, 0);
      const std::uint64_t its_nodes = line.option("nodes", 1, kMostBytes, 0);
      line.end();
      if (!its_ranks || !its_nodes) line.refuse("machine needs ranks= and nodes=, in that order");
      everyone = its_ranks == ranks && its_nodes == nodes;
      if (everyone) costs.machine = machine, costs.ranks = ranks, costs.nodes = nodes;
    } else if (verb == "cost") {
      read_cost(line, everyone ? &costs : nullptr);
      mine |= everyone;
    } else if (verb == "use") {
      read_use(line, everyone ? &costs : nullptr);
      mine |= everyone;
    } else {
      line.refuse("'" + verb + "'; begin lines with machine, cost, use or #");
    }
  }
  return mine;
}

double Costs::time_us(int collective, int algorithm, int protocol, std::size_t bytes) const {
  const auto& known = samples[static_cast<std::size_t>(collective)][static_cast<std::size_t>(algorithm)]
                             [static_cast<std::size_t>(protocol)];
  if (known.empty()) return -1;
  const auto size = static_cast<double>(bytes);
  if (size <= known.front().bytes) return known.front().time_us;  // latency
  if (known.size() == 1) return known.front().time_us * size / known.front().bytes;
  // The segment that holds the size; beyond the last sample, the last segment goes on.
  auto after = std::lower_bound(known.begin(), known.end(), size,
                                [](const Sample& sample, double wanted) { return sample.bytes < wanted; });
  if (after == known.end()) --after;
  const Sample &a = *(after - 1), &b = *after;
  const double time = a.time_us + (size - a.bytes) * (b.time_us - a.time_us) / (b.bytes - a.bytes);
  return size > b.bytes ? std::max(time, b.time_us) : time;
}

const Sample* Costs::nearest(int collective, int algorithm, int protocol, std::size_t bytes) const {
  const auto& known = samples[static_cast<std::size_t>(collective)][static_cast<std::size_t>(algorithm)]
                             [static_cast<std::size_t>(protocol)];
  if (known.empty()) return nullptr;
  const auto size = static_cast<double>(bytes);
  const auto after = std::lower_bound(known.begin(), known.end(), size,
                                      [](const Sample& sample, double wanted) { return sample.bytes < wanted; });
  if (after == known.begin()) return &known.front();
  if (after == known.end()) return &known.back();
  const auto before = after - 1;
  return size * size < before->bytes * after->bytes ? &*before : &*after;  // by their geometric mean
}

const Override* Costs::override_for(int collective, std::size_t bytes) const {
  const auto serves = [&](const Override& each) {
    return each.collective == collective && each.from <= bytes && bytes <= each.to;
  };
  const auto found = std::find_if(overrides.rbegin(), overrides.rend(), serves);
  return found == overrides.rend() ? nullptr : &*found;
}

}  // namespace teccl::nccl
