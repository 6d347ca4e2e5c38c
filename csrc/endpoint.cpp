#include "endpoint.hpp"

namespace teccl {

Endpoint::Endpoint(const Setting& setting, int rank, const std::vector<Memory>& memory) : setting_(setting) {
  require_executable(setting_, memory);
  std::map<Connection, Fifo*> fifos;
  for (const auto& [connection, traffic] : traffic_of(setting_)) {
    if (connection.src != rank && connection.dst != rank) continue;
    auto& lines = connection.src == rank ? outgoing_ : incoming_;
    lines.push_back(std::make_unique<Line>(connection, traffic, setting_.slots, traffic.longest_bytes));
    fifos[connection] = &lines.back()->fifo;
  }
  const auto fifo = [&fifos](const Connection& connection) { return fifos.at(connection); };
  rank_ = std::make_unique<Rank>(setting_, rank, memory.at(static_cast<std::size_t>(rank)), fifo);
}

bool Endpoint::finished() const {
  if (!rank_->finished()) return false;
  for (const auto& line : outgoing_)
    if (line->fifo.pushed() != line->fifo.popped()) return false;
  return true;
}

std::vector<std::string> Endpoint::blocked() const {
  std::vector<std::string> lines = rank_->blocked();
  if (!lines.empty()) return lines;
  for (const auto& line : outgoing_)
    if (const std::uint64_t left = line->fifo.pushed() - line->fifo.popped(); left > 0)
      lines.push_back("rank " + std::to_string(line->connection.dst) + " never receives the last " +
                      std::to_string(left) + " message(s) from rank " + std::to_string(line->connection.src) +
                      " on channel " + std::to_string(line->connection.channel));
  return lines;
}

std::vector<Endpoint::Parcel> Endpoint::departures() {
  std::vector<Parcel> parcels;
  for (std::size_t i = 0; i < outgoing_.size(); ++i) {
    Line& line = *outgoing_[i];
    for (; line.carried < line.fifo.pushed(); ++line.carried)
      parcels.push_back({i, line.carried % line.fifo.slots(), line.fifo.size_of(line.carried)});
  }
  return parcels;
}

std::vector<Endpoint::Credit> Endpoint::credits() {
  std::vector<Credit> credits;
  for (std::size_t i = 0; i < incoming_.size(); ++i) {
    Line& line = *incoming_[i];
    for (; line.carried < line.fifo.popped(); ++line.carried)
      credits.push_back({i, line.carried % line.fifo.slots()});
  }
  return credits;
}

}  // namespace teccl
