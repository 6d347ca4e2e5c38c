#include "programs.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace teccl::nccl {

const char* const collective_names[collectives] = {"allgather", "reduce_scatter", "allreduce", "alltoall",
                                                   "broadcast", "reduce",         "gather",    "scatter"};

bool is_reducing(Collective collective) {
  return collective == Collective::allreduce || collective == Collective::reduce ||
         collective == Collective::reduce_scatter;
}

bool has_shared_input(Collective collective) {
  return collective == Collective::reduce_scatter || collective == Collective::scatter ||
         collective == Collective::alltoall;
}

bool has_shared_output(Collective collective) {
  return collective == Collective::allgather || collective == Collective::gather || collective == Collective::alltoall;
}

namespace {

constexpr char magic[] = "TECCLNC1";
constexpr std::size_t body = 8 + 32;  // after the magic and the hash

struct Header {
  std::uint32_t nranks, nprograms, nentries, unused;
};
struct ProgramRecord {
  std::uint32_t parts, scratch, flags, name_size;  // 1: in place, too; 2: reduces; 4: writes its input
  std::uint64_t name;
};
struct RankRecord {
  std::uint32_t nrounds, nacts, scratch, flags;  // 1: writes its input
};

}  // namespace

void Programs::refuse(const std::string& why) const {
  throw std::runtime_error(path_ + ": " + why + "; run store env --runtime nccl again");
}

template <typename T>
const T* Programs::at(std::uint64_t offset, std::uint64_t count) const {
  if (offset % alignof(T) != 0 || offset > size_ || count > (size_ - offset) / sizeof(T)) refuse("is cut short");
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(words_.data()) + offset);
}

Programs::Programs(const std::string& path) : path_(path) {
  std::ifstream stream(path, std::ios::binary | std::ios::ate);
  if (!stream) refuse(std::string("cannot read the programs: ") + std::strerror(errno));
  const std::streamoff length = stream.tellg();
  if (length < 0) refuse("cannot read the programs");
  size_ = static_cast<std::size_t>(length);
  words_.resize(size_ / 8 + 1);
  stream.seekg(0);
  if (!stream.read(reinterpret_cast<char*>(words_.data()), length)) refuse("cannot read the programs");
  const char* start = at<char>(0, body);
  if (std::memcmp(start, magic, 8) != 0) refuse("holds no programs of this version");
  std::memcpy(digest_.data(), start + 8, digest_.size());
  if (sha256(reinterpret_cast<const std::uint8_t*>(start) + body, size_ - body) != digest_)
    refuse("is not the file that was written (its hash differs)");

  const Header header = *at<Header>(body, 1);
  nranks_ = header.nranks;
  std::uint64_t offset = body + sizeof(Header);
  const auto* entries = at<Entry>(offset, header.nentries);
  entries_.assign(entries, entries + header.nentries);
  offset += header.nentries * sizeof(Entry);
  const auto* records = at<ProgramRecord>(offset, header.nprograms);
  offset += header.nprograms * sizeof(ProgramRecord);
  const auto* ranks = at<std::uint64_t>(offset, std::uint64_t(header.nprograms) * nranks_);
  rank_offsets_.assign(ranks, ranks + std::uint64_t(header.nprograms) * nranks_);
  offset += rank_offsets_.size() * sizeof(std::uint64_t);
  const auto* hosts = at<std::uint32_t>(offset, nranks_);
  hosts_.assign(hosts, hosts + nranks_);
  for (std::uint32_t number = 0; number < header.nprograms; ++number) {
    const ProgramRecord& record = records[number];
    const char* name = at<char>(record.name, record.name_size);
    if (record.parts == 0) refuse("has a program without parts");
    programs_.push_back({std::string(name, record.name_size), Collective::allgather, record.parts, record.scratch,
                         (record.flags & 1) != 0, (record.flags & 2) != 0, (record.flags & 4) != 0});
  }
  std::vector<bool> seen(programs_.size(), false);
  for (const Entry& entry : entries_) {
    if (entry.collective >= collectives || entry.program >= header.nprograms) refuse("has an entry of nothing");
    const Collective collective = Collective(entry.collective);
    if (seen[entry.program] && programs_[entry.program].collective != collective)
      refuse("has a program for two collectives");
    seen[entry.program] = true;
    programs_[entry.program].collective = collective;
  }
}

bool Programs::reduces() const {
  for (const Program& program : programs_)
    if (program.reduces) return true;
  return false;
}

std::vector<RankProgram> Programs::of_rank(std::uint32_t rank) const {
  std::vector<RankProgram> found;
  for (std::uint32_t number = 0; number < programs_.size(); ++number) found.push_back(rank_program(number, rank));
  return found;
}

RankProgram Programs::rank_program(std::uint32_t program, std::uint32_t rank) const {
  const std::uint64_t offset = rank_offsets_.at(std::uint64_t(program) * nranks_ + rank);
  const RankRecord record = *at<RankRecord>(offset, 1);
  if (record.scratch > programs_[program].scratch) refuse("has a rank with more scratch than its program");
  RankProgram found = {};
  found.nrounds = record.nrounds;
  found.nacts = record.nacts;
  found.scratch = record.scratch;
  found.writes_input = (record.flags & 1) != 0;
  found.rounds = at<Round>(offset + sizeof(RankRecord), record.nrounds);
  found.acts = at<Act>(offset + sizeof(RankRecord) + record.nrounds * sizeof(Round), record.nacts);
  const Program& whole = programs_[program];
  std::uint32_t last = 0;
  for (std::uint32_t round = 0; round < record.nrounds; ++round) {
    const Round& one = found.rounds[round];
    if (one.local < last || one.messages < one.local || one.messages > record.nacts) refuse("has rounds in disorder");
    for (std::uint32_t number = last; number < one.messages; ++number) {
      const Act& act = found.acts[number];
      const bool message = number >= one.local;
      if (act.kind > Kind::receive || message != (act.kind >= Kind::send)) refuse("has an act of an unknown kind");
      if (message && (act.peer < 0 || std::uint32_t(act.peer) >= nranks_ || std::uint32_t(act.peer) == rank))
        refuse("has a message to nobody");
      const bool reads = act.kind != Kind::receive, writes = act.kind != Kind::send;
      const struct {
        Buffer buffer;
        std::uint32_t position;
        bool needed;
      } places[] = {{act.at_buffer, act.at, writes},
                    {act.source_buffer, act.source, reads},
                    {act.other_buffer, act.other, act.kind == Kind::reduce}};
      for (const auto& place : places) {
        if (place.needed != (place.buffer < Buffer::none)) refuse("has an act without a place");
        if (!place.needed) continue;
        const bool shares =
            place.buffer == Buffer::input ? has_shared_input(whole.collective) : has_shared_output(whole.collective);
        const std::uint64_t limit =
            place.buffer == Buffer::scratch ? record.scratch : std::uint64_t(whole.parts) * (shares ? nranks_ : 1);
        if (act.count == 0 || std::uint64_t(place.position) + act.count > limit)
          refuse("has an act outside its buffer");
        // Parts of a share differ by an element, and places in scratch hold one each.
        if (place.buffer == Buffer::scratch ? act.count != 1 : place.position % whole.parts != act.part % whole.parts)
          refuse("has an act that moves parts of a share elsewhere");
        found.uses_input = found.uses_input || place.buffer == Buffer::input;
        found.uses_output = found.uses_output || place.buffer == Buffer::output;
      }
      if (act.kind == Kind::reduce && !whole.reduces) refuse("has a reduction in a program without");
    }
    last = one.messages;
  }
  return found;
}

}  // namespace teccl::nccl
