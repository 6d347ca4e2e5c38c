#include "endpoint.hpp"

#include "lending.hpp"

namespace teccl {

Endpoint::Endpoint(const Setting& setting, int rank, const std::vector<Memory>& memory)
    : setting_(setting), rank_number_(rank) {
  require_executable(setting_, memory);
  std::map<Connection, Fifo*> fifos;
  std::map<Connection, Arrivals*> arrivals;
  for (const auto& [connection, traffic] : traffic_of(setting_)) {
    if (connection.src == rank) {
      outgoing_.push_back(std::make_unique<Line>(connection, traffic, setting_.slots));
      fifos[connection] = &outgoing_.back()->fifo;
    } else if (connection.dst == rank) {
      incoming_.push_back(std::make_unique<Arrivals>(connection, traffic, setting_.slots));
      incoming_.back()->asked_for.resize(setting_.slots);
      fifos[connection] = &incoming_.back()->fifo;
      arrivals[connection] = incoming_.back().get();
    }
  }
  const auto& threadblocks = setting_.program->gpus[static_cast<std::size_t>(rank)].threadblocks;
  for (std::size_t tb = 0; tb < threadblocks.size(); ++tb)
    if (threadblocks[tb].recv_peer >= 0)
      arrivals.at({threadblocks[tb].recv_peer, rank, threadblocks[tb].channel})->tb = tb;
  const auto fifo = [&fifos](const Connection& connection) { return fifos.at(connection); };
  const Memory& mine = memory.at(static_cast<std::size_t>(rank));
  rank_ = std::make_unique<Rank>(setting_, rank, mine, fifo, lending_steps(setting_, rank, mine));
}

void Endpoint::restart() {
  rank_->restart();
  for (auto& line : incoming_) {
    line->iteration = line->step = line->transfer = 0;
    line->due += static_cast<std::uint64_t>(line->traffic.taken);
  }
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
    for (; line.carried < line.fifo.pushed(); ++line.carried) parcels.push_back({i, line.fifo.at(line.carried)});
  }
  return parcels;
}

// The step of the next message that was not asked for, skipping those that receive nothing.
const Step& Endpoint::next_receive(Arrivals& line) const {
  const auto& steps = setting_.program->gpus[static_cast<std::size_t>(rank_number_)].threadblocks[line.tb].steps;
  const auto last = static_cast<std::int64_t>(steps.size());
  while (line.step == last || !op_traits(steps[static_cast<std::size_t>(line.step)].op).receives)
    if (++line.step >= last) line.step = 0, ++line.iteration;
  return steps[static_cast<std::size_t>(line.step)];
}

bool Endpoint::lands_in_place(const Step& step) const {
  return !setting_.injection.any() && (step.op == Op::recv || step.op == Op::recv_copy_send);
}

std::vector<Endpoint::Parcel> Endpoint::landings() {
  std::vector<Parcel> parcels;
  for (std::size_t i = 0; i < incoming_.size(); ++i) {
    Arrivals& line = *incoming_[i];
    for (; line.asked < line.due && line.asked - line.fifo.popped() < line.fifo.slots(); ++line.asked) {
      const Step& step = next_receive(line);
      Fifo::Message message{line.fifo.slot(line.asked % line.fifo.slots()),
                            rank_->message_bytes(step, line.iteration, line.transfer)};
      if (lands_in_place(step)) {
        if (!rank_->may_write(line.tb, line.iteration, line.step)) break;
        message.begin = rank_->destination(step, line.iteration, line.transfer);
      }
      if (++line.transfer == setting_.cut.transfers_of(step)) line.transfer = 0, ++line.step;
      line.asked_for[line.asked % line.fifo.slots()] = message;
      parcels.push_back({i, message});
    }
  }
  return parcels;
}

void Endpoint::landed(std::size_t index) {
  Arrivals& line = *incoming_.at(index);
  const Fifo::Message& message = line.asked_for[line.landed++ % line.fifo.slots()];
  line.fifo.lend(message.begin, message.bytes);
}

std::vector<std::size_t> Endpoint::credits() {
  std::vector<std::size_t> credits;
  for (std::size_t i = 0; i < incoming_.size(); ++i)
    for (Line& line = *incoming_[i]; line.carried < line.fifo.popped(); ++line.carried) credits.push_back(i);
  return credits;
}

}  // namespace teccl
