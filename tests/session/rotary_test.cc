// Rotary training through sessions: what is exact, what rotates, what it takes.
#include <algorithm>
#include <cstring>
#include <set>

#include "learners/frozen.h"
#include "learners/full.h"
#include "quant/format.h"
#include "tests/cli/run_program.h"
#include "tests/support/batches.h"
#include "tests/support/counting_ops.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"
#include "tests/support/golden_rig.h"

namespace jackscrew {
namespace {

std::vector<std::string> rotary(std::vector<std::string> more) {
  std::vector<std::string> settings = {"method=rotary",   "optimizer=adamw",
                                       "sequence_len=24", "learning_rate=1e-3",
                                       "max_grad_norm=0", "lr_scheduler_type=constant"};
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

std::unique_ptr<Session> rotary_session(const ModelFiles& files,
                                        const std::vector<std::string>& more) {
  const Recipe recipe = make_recipe(rotary(more));
  return make_session(recipe, files, training_use(24));
}

double train(Session& session, int64_t first, int64_t last) {
  double loss = 0.0;
  for (int64_t step = first; step < last; ++step) {
    session.accumulate(batch_of(step), 1e-3, step);
    const StepResult result = session.update({.matrices = 0.01, .vectors = 0.01});
    EXPECT_TRUE(result.finite);
    loss = result.loss;
  }
  return loss;
}

std::set<std::string> active_names(const Session& session) {
  std::set<std::string> names;
  session.visit([&](const StateRef& state) {
    if (state.role == StateRole::gradient) {
      names.insert(state.name.substr(0, state.name.rfind('.')));
    }
  });
  return names;
}

std::map<std::string, std::vector<float>> exact_values(const Session& session) {
  std::map<std::string, std::vector<float>> out;
  session.visit([&](const StateRef& state) {
    if (state.role != StateRole::parameter && state.role != StateRole::master) return;
    const float* data = state.view.data<float>();
    out[state.name] = std::vector<float>(data, data + state.view.size());
  });
  return out;
}

// Learns the named weights as `full` does, and nothing else.
class OnlyThese : public Learner {
 public:
  explicit OnlyThese(std::set<std::string> names) : names_(std::move(names)) {}
  const char* name() const override { return "only these"; }
  bool changes(const WeightSpec&) const override { return true; }
  std::unique_ptr<LearnerSlot> make_slot(const LearnerContext& context, Weight& weight) override {
    if (names_.contains(weight.name())) return make_full_slot(context, weight);
    return std::make_unique<FrozenSlot>();
  }

 private:
  std::set<std::string> names_;
};

// After the steps on one group its master is what AdamW on that group alone gives,
// all others lying in the same rounded form.
TEST(Rotary, AFlushedMasterIsWhatAdamwOnTheGroupAloneGives) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto session =
      rotary_session(files, {"storage=int8", "static=freeze", "active_params=50%",
                             "steps_per_rotation=5", "churn=1", "group_learning_rate=1e-3"});
  train(*session, 0, 5);
  const std::set<std::string> group = active_names(*session);
  ASSERT_FALSE(group.empty());
  train(*session, 5, 6);  // the rotation flushes
  const auto masters = exact_values(*session);

  OnlyThese learner(group);
  RigChoices choices;
  choices.format = [&](const WeightSpec& weight) {
    const bool frozen_linear = weight.is_block_matrix() && !group.contains(weight.name);
    return unowned(frozen_linear ? find_format("int8") : f32_format());
  };
  StageRig rig(model_of(files), StageSpec::whole(files.config), learner, std::move(choices));
  for (int64_t step = 0; step < 5; ++step) {
    const StepBatch batch = batch_of(step);
    const DeviceBatch micro(batch.micro_batches[0], batch.first_token);
    rig.begin(batch.targets);
    rig.accumulate(micro);
    rig.apply(1e-3f, {.matrices = 0.01, .vectors = 0.01});
  }
  size_t compared = 0;
  for (const auto& parameter : rig.stage().parameters()) {
    if (!group.contains(parameter->weight->name())) continue;
    const Tensor want = parameter->weight->as_f32();
    const auto& got = masters.at(parameter->weight->name());
    EXPECT_EQ(std::memcmp(got.data(), want.raw(), static_cast<size_t>(want.bytes())), 0)
        << parameter->weight->name();
    ++compared;
  }
  EXPECT_EQ(compared, group.size());
}

TEST(Rotary, AfterARoundEveryMasterHasChanged) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  for (const char* groups : {"attention,mlp", "block", "matrix"}) {
    const auto session = rotary_session(files, {"active_params=50%", "steps_per_rotation=1",
                                                std::string("rotation_groups=") + groups});
    const auto before = exact_values(*session);
    train(*session, 0, 12);
    const auto after = exact_values(*session);
    ASSERT_EQ(before.size(), after.size());
    for (const auto& [name, values] : before) EXPECT_NE(values, after.at(name)) << name;
  }
}

// With everything active, and no rotation within the run, rotary is full training.
TEST(Rotary, WithEverythingActiveItIsFullTraining) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto session = rotary_session(files, {"active_params=100%", "steps_per_rotation=100"});
  const auto full = make_session(
      make_recipe({"method=full", "sequence_len=24", "learning_rate=1e-3", "max_grad_norm=0"}),
      files, training_use(24));
  EXPECT_EQ(train(*session, 0, 8), train(*full, 0, 8));
  EXPECT_EQ(exact_values(*session), exact_values(*full));
}

TEST(Rotary, TheSameBitsWithOtherThreadsAndRecomputation) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  std::map<std::string, std::vector<float>> first;
  for (const char* setting : {"threads=1", "threads=2", "gradient_checkpointing=true"}) {
    const auto session = rotary_session(
        files, {"active_params=40%", "steps_per_rotation=2", "rotation_groups=matrix", setting});
    train(*session, 0, 9);
    if (first.empty()) first = exact_values(*session);
    EXPECT_EQ(exact_values(*session), first) << setting;
  }
}

TEST(Rotary, KeptMomentsComeBack) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto session =
      rotary_session(files, {"active_params=34%", "rotation_groups=block", "steps_per_rotation=3",
                             "moments=keep", "rotation_order=ascending", "static=freeze"});
  train(*session, 0, 3);
  const auto moments = state_values(session->stage(), StateRole::moment);
  train(*session, 3, 6);
  // While they wait they are the same values, among those that a checkpoint saves.
  const auto later = state_values(session->stage(), StateRole::moment);
  for (const auto& [name, values] : moments) {
    ASSERT_TRUE(later.contains(name)) << name;
    EXPECT_EQ(later.at(name), values) << name;
  }
  train(*session, 6, 10);  // three blocks, then the first again
  for (const auto& [name, values] : state_values(session->stage(), StateRole::moment)) {
    if (moments.contains(name)) {
      EXPECT_NE(values, moments.at(name)) << name;
    }
  }
}

TEST(Rotary, Bf16MastersAreCloseAndReproducible) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const std::vector<std::string> settings = {"active_params=50%", "steps_per_rotation=2",
                                             "master_dtype=bf16"};
  const auto a = rotary_session(files, settings);
  const auto b = rotary_session(files, settings);
  EXPECT_EQ(train(*a, 0, 10), train(*b, 0, 10));
  const auto f32 = rotary_session(files, {"active_params=50%", "steps_per_rotation=2"});
  EXPECT_NEAR(train(*a, 10, 12), train(*f32, 0, 12), 0.05);
  EXPECT_LT(a->host_ledger().peak, f32->host_ledger().peak);
}

// From the last block to the first, one at a time: backward passes as many as it must.
TEST(Rotary, BackwardEndsAtTheLowestActiveGroup) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const Recipe recipe =
      make_recipe(rotary({"static=freeze", "rotation_groups=block", "rotation_order=descending",
                          "active_params=34%", "steps_per_rotation=1"}));
  const SessionUse use = training_use(24);
  const SessionPlan plan = Session::rehearse(recipe, files, use);
  CountingOps* counting = nullptr;
  SessionHooks hooks;
  hooks.wrap = [&](std::unique_ptr<Ops> inner) {
    auto ops = std::make_unique<CountingOps>(std::move(inner));
    counting = ops.get();
    return ops;
  };
  Session session(recipe, files, use, plan, hooks);
  for (int64_t step = 0; step < files.config.num_hidden_layers; ++step) {
    counting->reset();
    train(session, step, step + 1);
    EXPECT_EQ(counting->attention_backwards, step + 1);
  }
}

// All wait before the first rotation, and a plan counts what forward then decodes.
TEST(Rotary, PlansThatEveryGroupWaits) {
  const TemporaryDirectory directory("jackscrew_rotary_waits");
  const ModelFiles files = open_model(directory.file("config.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64,
      "hidden_size": 64, "intermediate_size": 1024, "num_hidden_layers": 1,
      "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
      "tie_word_embeddings": false})"));
  const auto session =
      rotary_session(files, {"init=random", "storage=int8", "threads=1", "rotation_groups=block",
                             "active_params=100%", "steps_per_rotation=2"});
  EXPECT_GT(session->loss_sum(batch_of(0)), 0.0);
  train(*session, 0, 2);
}

// Its gradient is 64 bytes, and its storage twice as many. In the third window an MLP is the first
// to leave, after the second in which as much is active as ever.
TEST(Rotary, PlansWhatAMatrixOfAFewElementsTakesAsItLeaves) {
  const TemporaryDirectory directory("jackscrew_rotary_leaves");
  const ModelFiles files = open_model(directory.file("config.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64,
      "hidden_size": 16, "intermediate_size": 1, "num_hidden_layers": 2,
      "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 128,
      "tie_word_embeddings": false})"));
  const auto recipe = [](const std::string& budget) {
    return make_recipe(rotary({"init=random", "storage=int8_row", "static=freeze", "threads=1",
                               "rotation_groups=attention,mlp", "rotation_order=ascending",
                               "active_params=60%", "churn=0.2", "steps_per_rotation=1", budget}));
  };
  const SessionUse use = training_use(24);
  const SessionPlan plan = Session::rehearse(recipe("device_memory=auto"), files, use);
  Session session(recipe(fmt::format("device_memory={}B", plan.ledger.peak)), files, use, plan);
  train(session, 0, 7);
  EXPECT_EQ(session.memory().ledger().peak, plan.ledger.peak);
}

// Of one block at a time, although scratch memory is rehearsed with all of them at once.
TEST(Rotary, PlansToSendNoMoreThanLearnsAtOnce) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  int64_t gradients = 0;  // bytes of those of all blocks
  for (const WeightSpec& weight : weights_of(files.config, StageSpec::whole(files.config))) {
    if (weight.is_block_matrix()) gradients += weight.size() * dtype_size(DType::f32);
  }
  const auto sent = [&](const std::string& active) {
    const Recipe recipe =
        make_recipe(rotary({"static=freeze", "rotation_groups=block", "data_parallel=2", active}));
    SessionUse use = training_use(24);
    use.place.layout = layout_of(recipe, 2);
    return Session::rehearse(recipe, files, use).sent.gradient;
  };
  // Each of two ranks sends the bytes of its gradients once.
  EXPECT_EQ(sent("active_params=100%"), gradients);
  EXPECT_EQ(sent("active_params=34%") * files.config.num_hidden_layers, gradients);
}

TEST(Rotary, ReportsWhatEveryGroupChanged) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto session = rotary_session(files, {"active_params=50%", "steps_per_rotation=2"});
  train(*session, 0, 7);
  const auto events = session->learner().take_events();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_NE(events[1].fields.text().find("\"squared_change\": {\"layers."), std::string::npos)
      << events[1].fields.text();
  EXPECT_TRUE(session->learner().take_events().empty());
  // Exact weights have no master to compare with: what they changed is not said to be 0.
  const auto exact =
      rotary_session(files, {"active_params=50%", "steps_per_rotation=2", "storage=f32"});
  train(*exact, 0, 7);
  for (const LearnerEvent& event : exact->learner().take_events()) {
    EXPECT_NE(event.fields.text().find("\"squared_change\": {}"), std::string::npos)
        << event.fields.text();
  }
}

// A group that stays active, or is drawn again at once, does not become more important for it.
TEST(Rotary, MeasuresImportanceOverTheLastWindow) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto session = rotary_session(files, {"rotation_order=importance", "rotation_groups=block",
                                              "active_params=100%", "steps_per_rotation=2"});
  std::vector<double> scores(static_cast<size_t>(files.config.num_hidden_layers));
  const auto read_scores = [&] {
    session->visit([&](const StateRef& state) {
      if (state.name != "rotary.rotation") return;
      const size_t bytes = scores.size() * sizeof(double);  // the last of the state
      std::memcpy(scores.data(),
                  static_cast<const uint8_t*>(state.view.raw()) + state.view.bytes() - bytes,
                  bytes);
    });
    return scores;
  };
  // A learning rate of 0: every step has the gradients of the first.
  std::vector<std::vector<double>> windows;
  for (int64_t step = 0; step < 7; ++step) {
    session->accumulate(batch_of(0), 0.0, step);
    session->update({});
    if (step > 0 && step % 2 == 0) windows.push_back(read_scores());
  }
  for (const double score : windows[0]) {
    EXPECT_GT(score, 1e-9);
    EXPECT_NE(score, 1.0);  // what all have before
  }
  EXPECT_EQ(windows[1], windows[0]);
  EXPECT_EQ(windows[2], windows[0]);
}

TEST(Rotary, WarnsOfGroupsThatWillNotHaveTheirTurn) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto session = rotary_session(files, {"active_params=50%", "steps_per_rotation=10"});
  session->learner().begin_run(10);
  EXPECT_EQ(session->learner().notes().warnings.size(), 1u);
  session->learner().begin_run(100);
  EXPECT_TRUE(session->learner().notes().warnings.empty());
}

TEST(Rotary, ChoosesAPaceThatGivesEveryGroupTwoTurns) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto rotations = [&](int64_t steps, const std::string& churn, const std::string& setting) {
    const auto session = rotary_session(files, {"active_params=50%", "churn=" + churn, setting});
    session->learner().begin_run(steps);
    train(*session, 0, steps);
    return session->learner().take_events().size();
  };
  // Two windows to a round: 10 steps at least, then as many as leave room for two rounds, 50 at
  // most.
  EXPECT_EQ(rotations(24, "1", "steps_per_rotation=auto"), 3u);
  EXPECT_EQ(rotations(120, "1", "steps_per_rotation=auto"), 6u);
  EXPECT_EQ(rotations(68, "1", "steps_per_rotation=68"), 1u);
  // Three windows to a round, two to a turn: 5 steps at least.
  EXPECT_EQ(rotations(24, "0.5", "steps_per_rotation=auto"), 5u);
  EXPECT_EQ(rotations(120, "0.5", "steps_per_rotation=auto"), 6u);
}

TEST(Rotary, WarnsOfSettingsWithoutEffect) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto notes_of = [&](const std::vector<std::string>& settings) {
    const auto session = rotary_session(files, settings);
    session->learner().begin_run(1000);
    return session->learner().notes();
  };
  using Lines = std::vector<std::string>;
  EXPECT_EQ(notes_of({"active_params=100%", "churn=0.50", "overlap_rotation=no"}).warnings,
            Lines());
  const LearnerNotes all = notes_of({"active_params=100%", "churn=0.3", "moments=reset"});
  EXPECT_EQ(all.warnings,
            Lines{"churn=0.3 has no effect: all groups are active, and none rotates"});
  ASSERT_EQ(all.lines.size(), 2u);
  EXPECT_TRUE(all.lines[0].ends_with("parameters: none rotates")) << all.lines[0];
  EXPECT_TRUE(all.lines[1].starts_with("learning rate 0.001")) << all.lines[1];
  EXPECT_EQ(notes_of({"active_params=50%", "storage=f32", "master_dtype=bf16"}).warnings,
            Lines{"master_dtype=bf16 has no effect: weights are stored exactly, in f32"});
  const TemporaryDirectory directory("jackscrew_rotary_notes");
  const auto in_files = [&](const std::string& moments) {
    return notes_of({"active_params=50%", "storage=f32", "master=mmap", moments,
                     "output_dir=" + directory.path().string()})
        .warnings;
  };
  EXPECT_EQ(in_files("moments=reset"),
            Lines{"master=mmap has no effect: weights are stored exactly, in f32"});
  EXPECT_EQ(in_files("moments=keep"), Lines());
  EXPECT_EQ(notes_of({"active_params=50%", "overlap_rotation=true"}).warnings,
            Lines{"overlap_rotation=true has no effect: the CPU's copies do not run beside steps"});
  EXPECT_EQ(notes_of({"active_params=50%", "churn=0.3", "master_dtype=bf16"}).warnings, Lines());
}

TEST(Rotary, WarnsOfWhatIsRoundedAndNeverLearns) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto warnings = [&](const std::string& storage) {
    const auto session =
        rotary_session(files, {"rotation_groups=mlp", "active_params=50%", storage});
    session->learner().begin_run(1000);
    return session->learner().notes().warnings;
  };
  EXPECT_EQ(warnings("storage=int8"),
            std::vector<std::string>{
                "k_proj, o_proj, q_proj, v_proj learn nothing, and the result has them as "
                "storage=int8 rounds them: set rotation_groups=attention,mlp, which trains them, "
                "too, or storage=keep"});
  for (const char* storage : {"storage=keep", "storage=f32", "storage=bf16"}) {
    EXPECT_TRUE(warnings(storage).empty()) << storage;
  }
}

void expect_refused(const std::vector<std::string>& settings, const std::string& words) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  expect_error(ErrorKind::usage, words, [&] { rotary_session(files, settings); });
}

TEST(Rotary, RefusesWhatMakesNoSense) {
  expect_refused({"active_params=1%"}, "the largest group has");
  // Of single matrices, the embedding may be the largest.
  expect_refused({"active_params=1", "rotation_groups=matrix", "static=rotate"},
                 "at least; rotation_groups=matrix needs the least, with static=train less than "
                 "with static=rotate");
  expect_refused({"active_params=900M"}, "more than the");
  expect_refused({"active_params=200%"}, "more than the");
  expect_refused({"active_params=0"}, "trains nothing");
  for (const char* text : {"many", "0x10", "\t10%", " 10%", "1e3e3"}) {
    expect_refused({std::string("active_params=") + text}, "is not a number");
  }
  expect_refused({"active_params=10 bananas"}, "unknown unit");
  expect_refused({"rotation_order=sideways"}, "sideways");
  expect_refused({"rotation_groups=block,mlp"}, "overlap");
  expect_refused({"static=rotate", "static_learning_rate=1e-4"}, "static_learning_rate");
  expect_refused({"storage=q4_k"}, "storage");
  expect_refused({"group_learning_rate=0"}, "trains no group");
}

}  // namespace
}  // namespace jackscrew
