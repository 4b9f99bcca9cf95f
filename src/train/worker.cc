#include "train/worker.h"

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "base/error.h"
#include "formats/tensor_io.h"
#include "recipe/recipe_file.h"
#include "session/adapter.h"
#include "session/fit.h"
#include "session/loading.h"
#include "train/crew.h"
#include "train/opening.h"
#include "train/trainer.h"

namespace jackscrew {

namespace {

OptionSet options_of(const std::string& yaml, const std::string& whose) {
  OptionSet options = run_options(method_tables());
  for (const Assignment& assignment : parse_recipe_text(yaml, whose)) options.set(assignment);
  return options;
}

constexpr const char* kOfRank0 = "the recipe of rank 0";

std::vector<std::string> hosts_of(const Transport& transport) {
  std::vector<std::string> hosts;
  for (int rank = 0; rank < transport.size(); ++rank) hosts.push_back(transport.host(rank));
  return hosts;
}

class Worker {
 public:
  Worker(Transport& transport, RankStart start) : transport_(transport), start_(std::move(start)) {}

  void serve() {
    for (;;) {
      const std::vector<uint8_t> bytes =
          receive_sized(transport_, 0, Tag::command, kLargestMessage);
      MessageReader in(bytes);
      const auto command = in.get<Command>();
      if (command == Command::finish) {
        transport_.close();
        return;
      }
      obey(command, in);
    }
  }

 private:
  void obey(Command command, MessageReader& in) {
    const bool reads_or_writes = command == Command::read_state || command == Command::write_state;
    if (!reads_or_writes) states_.clear();
    switch (command) {
      case Command::open:
        return try_to([&](MessageWriter& result) { open(in, result); });
      case Command::load:
        return try_to([&](MessageWriter&) { load(in); });
      case Command::begin_run:
        return try_to([&](MessageWriter&) { session_->learner().begin_run(in.get<int64_t>()); });
      case Command::accumulate:
        return accumulate(in);
      case Command::apply:
        return session_->apply(in.get<WeightDecay>());
      case Command::result:
        session_->result();
        return answer(MessageWriter());
      case Command::losses:
        return losses(in);
      case Command::logits:
        return logits(in);
      case Command::list_states:
        return list_states();
      case Command::read_state:
        return read_state(in);
      case Command::write_state:
        return write_state(in);
      case Command::learner_restored:
        return try_to([&](MessageWriter&) { session_->learner_restored(); });
      case Command::restored:
        return session_->restored();
      case Command::non_finite:
        return answer(MessageWriter().put(session_->non_finite_parameter()));
      case Command::take_events:
        return take_events();
      case Command::list_weights:
        return list_weights();
      case Command::write_weight:
        return write_weight(in);
      case Command::memory:
        return memory();
      case Command::finish:
        break;
    }
    fail(ErrorKind::device, "rank 0 says what this program does not know");
  }

  void answer(std::span<const uint8_t> bytes) { send_sized(transport_, 0, Tag::command, bytes); }
  void answer(const MessageWriter& message) { answer(message.bytes()); }

  // A failure of such work does not end this rank: rank 0 is told, and decides.
  void try_to(const std::function<void(MessageWriter&)>& work) {
    MessageWriter result, out;
    std::optional<Error> failure;
    try {
      work(result);
    } catch (const std::exception& exception) {
      failure = error_of(exception);
    }
    put_failure(out, failure);
    answer(out.put(std::vector<uint8_t>(result.bytes().begin(), result.bytes().end())));
  }

  void open(MessageReader& in, MessageWriter& result) {
    require_version(in.get_text(), JACKSCREW_VERSION);
    const std::string yaml = in.get_text();
    const OptionSet given_to_first = options_of(in.get_text(), kOfRank0);
    const auto place = in.get<Place>();
    const auto data_bytes = in.get<int64_t>();
    const auto first = in.get<RankFacts>();
    recipe_ = followed_recipe(yaml, place.rank, hosts_of(transport_), start_.environments);
    files_.emplace(open_model(recipe_.model, recipe_.adapter, recipe_.tokenizer));
    const RankFacts own = facts_of(recipe_, *files_);
    require_same_files(first, own);
    // Not before: another adapter's options would be held against the recipe of rank 0.
    recipe_ = with_adapter_options(std::move(recipe_));
    use_ = training_use(recipe_);
    use_.place = place;
    use_.data_bytes = data_bytes;
    plan_ = Session::rehearse(recipe_, *files_, use_);
    require_fit(recipe_, *files_, use_, plan_);
    result.put(own);
    const auto memory = memory_of(recipe_, use_, plan_, transport_.host(place.rank));
    result.put(memory.size());
    for (const SharedMemory& one : memory) put(result, one);
    result.put(plan_.gradients);
    result.put(start_.given.empty()
                   ? std::vector<std::string>()
                   : other_settings(given_to_first, options_of(start_.given, "this rank")));
  }

  void load(MessageReader& in) {
    recipe_.output_dir = in.get_text();
    ProgressStyle quiet;
    quiet.quiet = true;
    session_ = load_session(recipe_, *files_, use_, plan_, quiet, &transport_);
  }

  void accumulate(MessageReader& in) {
    const auto step = in.get<int64_t>();
    const auto learning_rate = in.get<double>();
    session_->accumulate(in.get<StepBatch>(), learning_rate, step);
    // Rank 0 takes events from its own replica; other replicas have the same ones and drop them.
    if (use_.place.replica() > 0) session_->learner().take_events();
  }

  void losses(MessageReader& in) {
    const std::vector<double> losses = session_->losses(in.get<StepBatch>());
    if (use_.place.is_last()) answer(MessageWriter().put(losses));
  }

  void logits(MessageReader& in) {
    const auto ids = in.get_vector<int32_t>();
    const auto rows = in.get<int64_t>();
    const auto use_cache = in.get<bool>();
    if (use_cache) session_->keep_cached(in.get<int64_t>());
    session_->logits(ids, rows, use_cache);
  }

  const StateRef& find_state(const std::string& name) {
    if (states_.empty()) {
      session_->visit([&](const StateRef& state) { states_.emplace(state.name, state); });
    }
    const auto found = states_.find(name);
    if (found == states_.end()) {
      fail(ErrorKind::generic, "rank {} has no state {}", transport_.rank(), name);
    }
    return found->second;
  }

  void list_states() {
    std::vector<StateRef> states;
    session_->visit([&](const StateRef& state) { states.push_back(state); });
    MessageWriter out;
    out.put(states.size());
    for (const StateRef& state : states) put(out, state);
    answer(out);
  }

  void read_state(MessageReader& in) {
    const StateRef& state = find_state(in.get_text());
    write_tensor(session_->ops(), state.view,
                 [&](std::span<const uint8_t> bytes) { answer(bytes); });
    answer(MessageWriter());
  }

  void write_state(MessageReader& in) {
    const StateRef& state = find_state(in.get_text());
    const auto size = static_cast<int64_t>(in.get<size_t>());
    if (size != state.view.bytes()) {
      fail(ErrorKind::generic, "{} has {} bytes on rank {}, not {}", state.name, state.view.bytes(),
           transport_.rank(), size);
    }
    const Tensor to(state.view.raw(), DType::u8, {size});
    for (int64_t at = 0; at < size;) {
      const std::vector<uint8_t> piece = receive_sized(transport_, 0, Tag::command, size - at);
      read_tensor(session_->ops(), piece, to.columns(at, at + std::ssize(piece)));
      at += std::ssize(piece);
    }
  }

  void take_events() {
    const std::vector<LearnerEvent> events = session_->learner().take_events();
    MessageWriter out;
    out.put(events.size());
    for (const LearnerEvent& event : events) out.put(event.name).put(event.fields.body());
    answer(out);
  }

  void list_weights() {
    const std::vector<SafetensorsSpec> specs = SessionResult(*session_).weights();
    MessageWriter out;
    out.put(specs.size());
    for (const SafetensorsSpec& spec : specs) out.put(spec.name).put(spec.dtype).put(spec.shape);
    answer(out);
  }

  void write_weight(MessageReader& in) {
    SessionResult(*session_).write_weight(in.get_text(),
                                          [&](std::span<const uint8_t> bytes) { answer(bytes); });
    answer(MessageWriter());
  }

  void memory() {
    MessageWriter out;
    out.put(session_->device().name());
    out.put(session_->memory().ledger()).put(session_->host_ledger());
    answer(out.put(session_->sent()).put(session_->step_seconds_waited()));
  }

  Transport& transport_;
  RankStart start_;
  Recipe recipe_;
  std::optional<ModelFiles> files_;
  SessionUse use_;
  SessionPlan plan_;
  std::unique_ptr<Session> session_;
  // The session's states by name, for rank 0's requests. Cleared by commands that may move states.
  std::map<std::string, StateRef> states_;
};

}  // namespace

Recipe followed_recipe(const std::string& yaml, int rank, std::span<const std::string> hosts,
                       const std::vector<fs::path>& environments) {
  Recipe recipe = resolve_recipe(options_of(yaml, kOfRank0), method_tables());
  recipe.python_environments = environments;
  return recipe_on(recipe, rank, hosts);
}

void serve(Transport& transport, const RankStart& start) {
  const auto worker = std::make_shared<Worker>(transport, start);
  try {
    worker->serve();
  } catch (const std::exception& exception) {
    throw RanksLost(error_of(exception), worker);
  }
}

}  // namespace jackscrew
