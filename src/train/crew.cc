#include "train/crew.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/checked.h"
#include "base/console.h"
#include "base/text.h"
#include "formats/tensor_io.h"
#include "session/fit.h"
#include "session/loading.h"
#include "train/opening.h"

namespace jackscrew {

namespace {

MessageWriter message(Command command) {
  MessageWriter out;
  out.put(command);
  return out;
}

}  // namespace

// Takes pieces until next() returns an empty one, even after the sink has failed: the sending rank
// does not know of that and goes on.
template <class Next>
void take_all(const ByteSink& sink, const Next& next) {
  std::exception_ptr failure;
  for (std::vector<uint8_t> bytes = next(); !bytes.empty(); bytes = next()) {
    if (failure) continue;
    try {
      sink(bytes);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

// A state, and the ranks that hold it.
struct Crew::Listed {
  StateRef state;
  std::vector<int> ranks;  // that hold it; the first one is read
};

// Reads from the first of the ranks that hold a state, and writes to all of them.
class Crew::State : public RemoteState {
 public:
  State(Crew& crew, Listed listed) : crew_(crew), listed_(std::move(listed)) {}

  void read(const ByteSink& sink) const override {
    const int rank = listed_.ranks.front();
    const StateRef& state = listed_.state;
    if (rank == 0) return write_tensor(crew_.ops(), state.view, sink);
    crew_.send(rank, message(Command::read_state).put(state.name));
    take_all(sink, [&] { return crew_.receive(rank); });
  }

  void write(std::span<const uint8_t> bytes) const override {
    const StateRef& state = listed_.state;
    for (const int rank : listed_.ranks) {
      if (rank == 0) {
        read_tensor(crew_.ops(), bytes, state.view);
        continue;
      }
      crew_.send(rank, message(Command::write_state).put(state.name).put(bytes.size()));
      for (size_t at = 0; at < bytes.size(); at += kTransferBytes) {
        const size_t size = std::min(bytes.size() - at, static_cast<size_t>(kTransferBytes));
        crew_.communicate(
            [&] { send_sized(*crew_.transport_, rank, Tag::command, bytes.subspan(at, size)); });
      }
    }
  }

 private:
  Crew& crew_;
  Listed listed_;
};

Crew::Crew(const Recipe& recipe, const ModelFiles& files, Transport* transport, std::string given)
    : recipe_(recipe),
      files_(files),
      transport_(transport),
      given_(std::move(given)),
      use_(training_use(recipe)) {
  use_.place.layout = layout_of(recipe, transport == nullptr ? 1 : transport->size());
  use_.place.stage_split = stage_split_of(recipe, files.config, layout().stages);
}

Crew::~Crew() = default;

// If work() throws, the flag stays set.
template <class Work>
auto Crew::in_common_work(const Work& work) {
  in_common_work_ = !is_alone();
  if constexpr (std::is_void_v<decltype(work())>) {
    work();
    in_common_work_ = false;
  } else {
    auto result = work();
    in_common_work_ = false;
    return result;
  }
}

// A failure means that ranks are lost: a rank that cannot be reached once will not be reachable
// later.
void Crew::communicate(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    has_lost_ranks_ = true;
    throw;
  }
}

void Crew::send(int rank, const MessageWriter& message) {
  communicate([&] { send_sized(*transport_, rank, Tag::command, message.bytes()); });
}

void Crew::send_all(const MessageWriter& message) {
  for (int rank = 1; rank < ranks(); ++rank) send(rank, message);
}

void Crew::send_all(Command command) {
  send_all(message(command));
}

void Crew::send_all(MessageWriter message, const StepBatch& batch) {
  if (is_alone()) return;  // nobody reads a copy of it
  put(message, batch);
  send_all(message);
}

std::vector<uint8_t> Crew::receive(int rank) {
  std::vector<uint8_t> bytes;
  communicate([&] { bytes = receive_sized(*transport_, rank, Tag::command, kLargestMessage); });
  return bytes;
}

MessageReader Crew::ask(int rank, Command command) {
  send(rank, message(command));
  return MessageReader(receive(rank));
}

std::vector<int> Crew::replicas_of(int rank) const {
  std::vector<int> out;
  for (int replica = 0; replica < layout().replicas; ++replica) {
    out.push_back(layout().rank_of(replica, layout().stage_of(rank)));
  }
  return out;
}

// Does this rank's part of a command and hears from every rank whether its part succeeded, even if
// one fails: ranks that succeeded wait for the next command. Returns the ranks' answers.
std::vector<std::vector<uint8_t>> Crew::begin_together(const std::function<void()>& work) {
  std::optional<Error> failure;
  const auto failed = [&](int rank, const Error& error) {
    if (failure) return;
    failure.emplace(error.kind(),
                    fmt::format("rank {} on {}: {}", rank, transport_->host(rank), error.what()),
                    error.hint());
  };
  std::vector<std::vector<uint8_t>> results;
  in_common_work([&] {
    try {
      work();
    } catch (const Error& error) {
      // Other ranks are not waited for where this one was interrupted.
      if (error.kind() == ErrorKind::interrupted || is_alone()) throw;
      failed(0, error);
    }
    for (int rank = 1; rank < ranks(); ++rank) {
      MessageReader in(receive(rank));
      if (const auto theirs = get_failure(in)) failed(rank, *theirs);
      results.push_back(in.get_vector<uint8_t>());
    }
  });
  if (failure) throw Error(*failure);
  return results;
}

SessionPlan Crew::rehearse(const DataMemory& data, int64_t file_bytes) {
  // A rank that is not alone also has the message by which the step goes from one to the other.
  const int64_t of_step = checked_mul(data.step, is_alone() ? 1 : 2);
  use_.data_bytes = checked_add(data.planning, of_step);
  use_.file_bytes = file_bytes;
  SessionPlan plan;
  std::vector<RankFacts> all;
  if (!is_alone()) {
    const RankFacts& facts = all.emplace_back(facts_of(recipe_, files_));
    for (int rank = 1; rank < ranks(); ++rank) {
      MessageWriter open = message(Command::open);
      Place place = use_.place;
      place.rank = rank;
      open.put(std::string(JACKSCREW_VERSION)).put(recipe_.to_yaml()).put(given_);
      open.put(place).put(of_step).put(facts);
      send(rank, open);
    }
  }
  const auto results = begin_together([&] {
    plan = Session::rehearse(recipe_, files_, use_);
    require_fit(recipe_, files_, use_, plan);
  });
  if (is_alone()) return plan;
  std::vector<SharedMemory> memory = memory_of(recipe_, use_, plan, transport_->host(0));
  int64_t gradients = plan.gradients;
  std::set<std::string> others;  // settings that are not rank 0's
  for (const std::vector<uint8_t>& result : results) {
    MessageReader in(result);
    all.push_back(in.get<RankFacts>());
    for (auto left = in.get<size_t>(); left > 0; --left) memory.push_back(get_memory(in));
    gradients = checked_add(gradients, in.get<int64_t>());
    for (std::string& name : in.get_vector<std::string>()) others.insert(std::move(name));
  }
  if (!others.empty()) {
    warn(fmt::format("not all ranks were started with the same {}: rank 0's are used",
                     fmt::join(others, ", ")));
  }
  require_learning(recipe_.learner, gradients);
  require_alike(all, layout(), plan.updates_tied);
  require_fit_together(memory);
  return plan;
}

void Crew::load(const SessionPlan& plan, const ProgressStyle& style) {
  send_all(message(Command::load).put(recipe_.output_dir));
  begin_together([&] { session_ = load_session(recipe_, files_, use_, plan, style, transport_); });
  if (layout().stages == 1) return;
  session_->set_logits_listener([this](std::span<const int32_t> ids, int64_t rows, bool use_cache,
                                       const std::function<void()>& compute) {
    in_common_work([&] {
      MessageWriter out = message(Command::logits);
      out.put(std::vector<int32_t>(ids.begin(), ids.end())).put(rows).put(use_cache);
      if (use_cache) out.put(session_->cached_tokens());
      for (int stage = 1; stage < layout().stages; ++stage) send(layout().rank_of(0, stage), out);
      compute();
    });
  });
}

void Crew::begin_run(int64_t total_steps) {
  send_all(message(Command::begin_run).put(total_steps));
  begin_together([&] { session_->learner().begin_run(total_steps); });
}

void Crew::accumulate(const StepBatch& batch, double learning_rate, int64_t step,
                      const ProgressCallback& progress) {
  return in_common_work([&] {
    send_all(message(Command::accumulate).put(step).put(learning_rate), batch);
    session_->accumulate(batch, learning_rate, step, progress);
  });
}

void Crew::apply(const WeightDecay& weight_decay) {
  return in_common_work([&] {
    send_all(message(Command::apply).put(weight_decay));
    session_->apply(weight_decay);
  });
}

StepResult Crew::result() {
  return in_common_work([&] {
    send_all(Command::result);
    const StepResult result = session_->result();
    // A step is told only once all ranks have it: one may have lost its weights (check_maps()).
    for (int rank = 1; rank < ranks(); ++rank) receive(rank);
    return result;
  });
}

double Crew::loss_sum(const StepBatch& batch, const ProgressCallback& progress) {
  return in_common_work([&] {
    send_all(message(Command::losses), batch);
    const int last_stage = layout().stages - 1;
    std::vector<std::vector<double>> losses;  // of each replica's micro-batches
    std::vector<double> own = session_->losses(batch, progress);
    for (int replica = 0; replica < layout().replicas; ++replica) {
      const int rank = layout().rank_of(replica, last_stage);
      if (rank == 0) {
        losses.push_back(own);
        continue;
      }
      losses.push_back(MessageReader(receive(rank)).get_vector<double>());
    }
    double sum = 0.0;
    for (size_t i = 0; i < batch.micro_batches.size(); ++i) {
      const size_t replicas = losses.size();
      sum += losses[i % replicas].at(i / replicas);
    }
    return sum;
  });
}

std::vector<LearnerEvent> Crew::take_events() {
  return in_common_work([&] {
    std::vector<LearnerEvent> events = session_->learner().take_events();
    for (int stage = 1; stage < layout().stages; ++stage) {
      const int rank = layout().rank_of(0, stage);
      MessageReader in = ask(rank, Command::take_events);
      for (auto left = in.get<size_t>(); left > 0; --left) {
        std::string name = in.get_text();
        events.push_back({std::move(name), JsonObject::of_body(in.get_text())});
      }
    }
    return events;
  });
}

void Crew::learner_restored() {
  send_all(Command::learner_restored);
  begin_together([&] { session_->learner_restored(); });
}

void Crew::restored() {
  return in_common_work([&] {
    send_all(Command::restored);
    session_->restored();
  });
}

// With several ranks, checkpoints copy masters: they link no master file, which a step would then
// have to replace.
void Crew::reserve_master_files() {
  if (is_alone()) session_->reserve_master_files();
}

std::string Crew::non_finite_parameter() {
  return in_common_work([&] {
    send_all(Command::non_finite);
    std::string name = session_->non_finite_parameter();
    for (int rank = 1; rank < ranks(); ++rank) {
      MessageReader in(receive(rank));
      if (name.empty()) name = in.get_text();
    }
    return name;
  });
}

nlohmann::json Crew::adapter() {
  return session_->learner().adapter();
}

// The order is that of a single rank with the whole model: first what learners keep for the whole
// run, then the states of the weights, stage by stage.
void Crew::visit(const StateVisitor& visitor) {
  if (is_alone()) return session_->visit(visitor);
  std::vector<Listed> all;
  std::map<std::string, size_t> places;
  const auto add = [&](StateRef state, int rank) {
    const auto [place, is_new] = places.emplace(state.name, all.size());
    if (is_new) all.push_back({std::move(state), {}});
    for (const int same : replicas_of(rank)) all[place->second].ranks.push_back(same);
  };
  session_->visit([&](const StateRef& state) { add(state, 0); });
  for (int stage = 1; stage < layout().stages; ++stage) {
    const int rank = layout().rank_of(0, stage);
    MessageReader in = ask(rank, Command::list_states);
    for (auto left = in.get<size_t>(); left > 0; --left) add(get_state(in), rank);
  }
  std::stable_partition(all.begin(), all.end(), [](const Listed& listed) {
    return listed.state.role == StateRole::learner;
  });
  for (Listed& listed : all) {
    StateRef state = listed.state;
    state.remote = std::make_shared<State>(*this, std::move(listed));
    visitor(state);
  }
}

std::vector<SafetensorsSpec> Crew::weights() {
  return in_common_work([&] {
    std::vector<SafetensorsSpec> all = SessionResult(*session_).weights();
    std::set<std::string> names;
    for (const SafetensorsSpec& spec : all) names.insert(spec.name);
    for (int stage = 1; stage < layout().stages; ++stage) {
      const int rank = layout().rank_of(0, stage);
      MessageReader in = ask(rank, Command::list_weights);
      for (auto left = in.get<size_t>(); left > 0; --left) {
        SafetensorsSpec spec{in.get_text(), in.get_text(), in.get_vector<int64_t>()};
        if (!names.insert(spec.name).second) continue;  // a tied embedding
        owners_[spec.name] = rank;
        all.push_back(std::move(spec));
      }
    }
    return all;
  });
}

void Crew::write_weight(const std::string& name, const ByteSink& sink) {
  const auto owner = owners_.find(name);
  if (owner == owners_.end()) return SessionResult(*session_).write_weight(name, sink);
  send(owner->second, message(Command::write_weight).put(name));
  take_all(sink, [&] { return receive(owner->second); });
}

namespace {

RankReport report_of(const Session& session, const std::string& host) {
  return {host,
          session.device().name(),
          session.memory().ledger(),
          session.host_ledger(),
          session.sent(),
          session.step_seconds_waited()};
}

}  // namespace

std::vector<RankReport> Crew::reports() {
  return in_common_work([&] {
    std::vector<RankReport> all;
    all.push_back(report_of(*session_, is_alone() ? "" : transport_->host(0)));
    for (int rank = 1; rank < ranks(); ++rank) {
      MessageReader in = ask(rank, Command::memory);
      RankReport& report = all.emplace_back();
      report.host = transport_->host(rank);
      report.computes_on = in.get_text();
      report.device = in.get<Ledger>();
      report.host_memory = in.get<Ledger>();
      report.sent = in.get<Traffic>();
      report.seconds_waited = in.get<double>();
    }
    return all;
  });
}

void dismiss(Transport* transport) {
  if (transport == nullptr) return;
  for (int rank = 1; rank < transport->size(); ++rank) {
    send_sized(*transport, rank, Tag::command, message(Command::finish).bytes());
  }
  transport->close();
}

}  // namespace jackscrew
