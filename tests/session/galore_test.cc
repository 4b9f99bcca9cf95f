// GaLore and fused updates through sessions: what is exact, what is refreshed when, what it takes.
#include <algorithm>
#include <cmath>

#include "formats/json_text.h"
#include "tests/support/batches.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

std::unique_ptr<Session> session_of(const ModelFiles& files, const std::string& settings) {
  std::vector<std::string> all = settings_of("sequence_len=24 learning_rate=1e-3 " + settings);
  return make_session(make_recipe(all), files, training_use(24));
}

double train(Session& session, int64_t steps, int64_t micro_batches = 1, int64_t first = 0) {
  session.learner().begin_run(first + steps);
  double loss = 0.0;
  for (int64_t step = first; step < first + steps; ++step) {
    session.accumulate(batch_of(step, micro_batches), 1e-3, step);
    const StepResult result = session.update({.matrices = 0.01, .vectors = 0.0});
    EXPECT_TRUE(result.finite);
    loss = result.loss;
  }
  return loss;
}

// All that a checkpoint would hold, and the norm of the last step.
std::map<std::string, std::vector<uint8_t>> saved(const Session& session) {
  std::map<std::string, std::vector<uint8_t>> out;
  session.visit([&](const StateRef& state) {
    if (!state.save) return;
    const auto* bytes = static_cast<const uint8_t*>(state.view.raw());
    out[state.name] = std::vector<uint8_t>(bytes, bytes + state.view.bytes());
  });
  return out;
}

struct FusedCase {
  const char* name;
  const char* model;
  const char* settings;
};

void PrintTo(const FusedCase& fused, std::ostream* out) {
  *out << fused.name;
}

class FusedUpdate : public ::testing::TestWithParam<FusedCase> {};

// Each gradient is formed with the weights of before, whenever they are updated.
TEST_P(FusedUpdate, IsTheUpdateAfterBackward) {
  const ModelFiles files = open_model(golden_path(GetParam().model).string());
  for (const int64_t micro_batches : {1, 2}) {
    std::vector<std::map<std::string, std::vector<uint8_t>>> results;
    std::vector<double> norms;
    for (const char* update : {"after", "fused"}) {
      const auto session = session_of(
          files, std::string(GetParam().settings) + " weight_decay=0.01 max_grad_norm=0 update=" +
                     update + fmt::format(" gradient_accumulation_steps={}", micro_batches) +
                     " max_grad_norm_of=" + (update == std::string("fused") ? "weight" : "model"));
      train(*session, 6, micro_batches);
      results.push_back(saved(*session));
      session->accumulate(batch_of(6, micro_batches), 1e-3, 6);
      norms.push_back(session->update({.matrices = 0.01, .vectors = 0.0}).grad_norm);
    }
    ASSERT_EQ(results[0].size(), results[1].size());
    for (const auto& [name, bytes] : results[0]) {
      EXPECT_EQ(bytes == results[1].at(name), true) << name << ", " << micro_batches;
    }
    EXPECT_NEAR(norms[0], norms[1], 1e-6 * norms[0]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Methods, FusedUpdate,
    ::testing::Values(
        FusedCase{"full_tied", "gqa_tied", "method=full"},
        FusedCase{"full_untied", "mha_untied", "method=full"},
        FusedCase{"full_bf16_8bit", "odd", "method=full storage=bf16 optimizer=adamw_8bit"},
        FusedCase{"full_recomputed", "gqa_tied", "method=full gradient_checkpointing=true"},
        FusedCase{"lora", "gqa_tied", "method=lora lora_rank=3"},
        FusedCase{"lora_whole_modules", "mha_untied", "method=lora modules_to_save=lm_head"},
        FusedCase{"rotary", "gqa_tied",
                  "method=rotary optimizer=adamw active_params=60% steps_per_rotation=2"},
        FusedCase{"galore", "qwen3", "method=galore projection_update_gap=3"},
        FusedCase{"qgalore", "mha_untied",
                  "method=qgalore projection_update_gap=3 galore_side=big"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(FusedUpdates, MatricesShareTheMemoryOfOneGradient) {
  const ModelFiles files = open_model(golden_path("mha_untied").string());
  const auto gradients = [&](const std::string& settings) {
    const auto session = session_of(files, "method=full max_grad_norm=0 " + settings);
    train(*session, 2, settings.find("steps=2") == std::string::npos ? 1 : 2);
    return session->memory().ledger().at_peak[static_cast<size_t>(Purpose::gradients)];
  };
  int64_t largest = 0, vectors = 0;
  for (const WeightSpec& weight : weights_of(files.config, StageSpec::whole(files.config))) {
    const int64_t bytes = booked_bytes(weight.size() * 4);
    weight.is_vector() ? vectors += bytes : largest = std::max(largest, bytes);
  }
  EXPECT_EQ(gradients("update=fused"), largest + vectors);
  EXPECT_EQ(gradients("update=fused gradient_accumulation_steps=2"), gradients("update=after"));
}

// Of every first moment, by the weight's name.
std::map<std::string, double> moment_norms(const Session& session) {
  std::map<std::string, double> out;
  session.visit([&](const StateRef& state) {
    if (!state.name.ends_with(".m")) return;
    double squares = 0.0;
    for (int64_t i = 0; i < state.view.size(); ++i) {
      const auto value = static_cast<double>(state.view.data<float>()[i]);
      squares += value * value;
    }
    out[state.name.substr(0, state.name.size() - 2)] = std::sqrt(squares);
  });
  return out;
}

TEST(FusedUpdates, ClipEachWeightByItself) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto moved = [&](double limit) {
    const auto session = session_of(
        files,
        fmt::format("method=full update=fused max_grad_norm_of=weight max_grad_norm={}", limit));
    train(*session, 1);
    return moment_norms(*session);
  };
  // First moments after one step are a tenth of the gradients.
  const auto free = moved(0.0);
  std::vector<double> norms;
  for (const auto& [name, norm] : free) norms.push_back(norm * 10.0);
  std::sort(norms.begin(), norms.end());
  const double limit = norms[norms.size() / 2];
  // Each weight has its part of what the norm of all may be.
  const auto weights = weights_of(files.config, StageSpec::whole(files.config)).size();
  const auto clipped = moved(limit * std::sqrt(static_cast<double>(weights)));
  EXPECT_LT(norms.front(), 0.9 * limit);
  EXPECT_GT(norms.back(), 1.1 * limit);
  for (const auto& [name, norm] : free) {
    EXPECT_NEAR(clipped.at(name), std::min(norm, limit * 0.1), 1e-4 * norm) << name;
  }
}

// A step later each has the part that it had of the norm of all, so that clipping is that of a
// model whose gradients stay what they were.
TEST(FusedUpdates, ClipEachWeightToThePartThatItHad) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto norms = [&](const char* update) {
    const auto session =
        session_of(files, fmt::format("method=full max_grad_norm=1e-4 {}", update));
    // A learning rate of 0: the second step has the gradients of the first.
    for (int64_t step = 0; step < 2; ++step) {
      session->accumulate(batch_of(0, 1), 0.0, step);
      session->update({});
    }
    return moment_norms(*session);
  };
  const auto whole = norms("update=after");
  const auto each = norms("update=fused max_grad_norm_of=weight");
  const auto count =
      static_cast<double>(weights_of(files.config, StageSpec::whole(files.config)).size());
  ASSERT_EQ(static_cast<double>(whole.size()), count);
  for (const auto& [name, norm] : whole) {
    // m = 0.09 of the first step and 0.1 of the second; the first has 1 / sqrt(N) of the limit.
    const double part = norm / 0.19;
    EXPECT_NEAR(each.at(name), 0.09 * 1e-4 / std::sqrt(count) + 0.1 * part, 1e-3 * part) << name;
  }
}

// The last norm of a group that has waited is no part of the norm of the step before, which is of
// other groups: a later turn begins as the first one.
TEST(FusedUpdates, ClipAWeightThatHasWaitedAsInItsFirstStep) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto session = session_of(
      files,
      "method=rotary optimizer=adamw update=fused max_grad_norm_of=weight max_grad_norm=1e-4"
      " static=freeze rotation_groups=block rotation_order=ascending active_params=34% churn=1"
      " steps_per_rotation=1 moments=reset");
  // Three blocks, then the first again, with a learning rate of 0.
  std::vector<std::map<std::string, double>> moments;
  for (int64_t step = 0; step < 4; ++step) {
    session->accumulate(batch_of(0), 0.0, step);
    session->update({});
    moments.push_back(moment_norms(*session));
  }
  EXPECT_FALSE(moments[0].empty());
  EXPECT_NE(moments[1], moments[0]);
  EXPECT_EQ(moments[3], moments[0]);
}

TEST(FusedUpdates, ALossThatIsNotFiniteChangesNothing) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto session =
      session_of(files, "method=qgalore max_grad_norm=0 projection_update_gap=100");
  train(*session, 2);
  session->visit([&](const StateRef& state) {
    if (state.name == "model.norm.weight") state.view.data<float>()[0] = NAN;
  });
  const auto before = saved(*session);
  session->accumulate(batch_of(2), 1e-3, 2);
  const StepResult result = session->update({});
  EXPECT_FALSE(result.finite);
  EXPECT_EQ(result.step, 2);
  EXPECT_TRUE(std::isnan(result.loss));
  const auto after = saved(*session);
  for (const auto& [name, bytes] : before) {
    // The optimizer's factors say that nothing is active, and a window has summed what it was
    // given.
    const bool told = name.ends_with(".adamw") || name.ends_with(".window");
    if (told) continue;
    EXPECT_TRUE(bytes == after.at(name)) << name;
  }
}

TEST(FusedUpdates, RefuseAStepOfMoreMicroBatchesThanPlanned) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto session = session_of(files, "method=full update=fused max_grad_norm=0");
  error_of(ErrorKind::generic, [&] { session->accumulate(batch_of(0, 2), 1e-3, 0); });
}

class GaloreStorage : public ::testing::TestWithParam<const char*> {};

TEST_P(GaloreStorage, LearnsInPlace) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto session =
      session_of(files, std::string("method=galore projection_update_gap=5 storage=") + GetParam());
  session->learner().begin_run(60);
  double first = 0.0, last = 0.0;
  for (int64_t step = 0; step < 60; ++step) {
    session->accumulate(batch_of(0), 3e-3, step);
    last = session->update({}).loss;
    if (step == 0) first = last;
  }
  EXPECT_LT(last, 0.5 * first) << GetParam();
}

INSTANTIATE_TEST_SUITE_P(Formats, GaloreStorage,
                         ::testing::Values("keep", "f32", "bf16", "f16", "int8_affine", "int8",
                                           "int8_row"),
                         [](const auto& test) { return std::string(test.param); });

// Windows that open and close, all at once or one after another, take what was reserved.
TEST(Galore, PlansEveryWindow) {
  const ModelFiles files = open_model(golden_path("qwen3").string());
  for (const char* settings :
       {"method=galore projection_update_gap=3 projection_window=2",
        "method=galore projection_update_gap=3 stagger_refreshes=false",
        "method=galore subspace=random projection_update_gap=2",
        "method=galore subspace=svd projection_update_gap=4 projection_window=4",
        "method=qgalore projection_update_gap=4 lazy_overlap=0.01 projection_window=3",
        "method=qgalore gradient_accumulation_steps=2 projection_update_gap=2",
        "method=galore storage=bf16 projection_dtype=bf16 galore_side=big galore_rank=30%"}) {
    const Recipe recipe =
        make_recipe(settings_of(std::string("sequence_len=24 max_steps=20 ") + settings));
    const SessionPlan plan = Session::rehearse(recipe, files, training_use(24));
    Session session(recipe, files, training_use(24), plan);
    train(session, 20, recipe.gradient_accumulation_steps);
    session.loss_sum(batch_of(0));
    EXPECT_EQ(session.non_finite_parameter(), "");
    EXPECT_EQ(session.memory().ledger().peak, plan.ledger.peak) << settings;
    EXPECT_EQ(session.memory().ledger().at_peak, plan.ledger.at_peak) << settings;
  }
}

// As restoring a checkpoint does, of which these are the states.
void restore_learner(Session& session, const std::map<std::string, std::vector<uint8_t>>& states) {
  session.visit([&](const StateRef& state) {
    if (state.role != StateRole::learner) return;
    const std::vector<uint8_t>& bytes = states.at(state.name);
    std::copy(bytes.begin(), bytes.end(), static_cast<uint8_t*>(state.view.raw()));
  });
  session.learner_restored();
}

// Windows that are open when a checkpoint is restored make room for the checkpoint's.
TEST(Galore, RestoresWindowsWithinThePlan) {
  const ModelFiles files = open_model(golden_path("qwen3").string());
  const Recipe recipe =
      make_recipe(settings_of("sequence_len=24 max_steps=20 method=galore projection_update_gap=4 "
                              "projection_window=2 galore_side=big galore_rank=16"));
  const SessionPlan plan = Session::rehearse(recipe, files, training_use(24));
  Session session(recipe, files, training_use(24), plan);
  session.learner().begin_run(20);
  std::vector<std::map<std::string, std::vector<uint8_t>>> after_step;
  for (int64_t step = 0; step < 8; ++step) {
    session.accumulate(batch_of(step), 1e-3, step);
    session.update({});
    after_step.push_back(saved(session));
  }
  for (const auto& last : after_step) {
    for (const auto& best : after_step) {
      restore_learner(session, last);
      restore_learner(session, best);
    }
  }
  EXPECT_EQ(session.memory().ledger().peak, plan.ledger.peak);
}

// Nothing is summed for them, so that no step differs from the one before.
TEST(Galore, RandomSubspacesHaveNoWindows) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto session = session_of(files, "method=galore subspace=random projection_update_gap=3");
  train(*session, 5);
  size_t schedules = 0;
  session->visit([&](const StateRef& state) {
    if (!state.name.ends_with(".refreshes")) return;
    const auto* schedule = static_cast<const int64_t*>(state.view.raw());
    EXPECT_GT(schedule[2], 0) << "refreshes of " << state.name;
    EXPECT_EQ(schedule[4], 0) << "a window of " << state.name;
    ++schedules;
  });
  EXPECT_EQ(schedules, static_cast<size_t>(7 * files.config.num_hidden_layers));
}

struct Refresh {
  int64_t step;
  std::string weight;
  double overlap;
};

std::vector<Refresh> refreshes_of_steps(Session& session, int64_t first, int64_t last, double rate,
                                        bool same_batch) {
  std::vector<Refresh> out;
  for (int64_t step = first; step < last; ++step) {
    session.accumulate(batch_of(same_batch ? 0 : step), rate, step);
    session.update({});
    for (const LearnerEvent& event : session.learner().take_events()) {
      EXPECT_EQ(event.name, "refresh");
      const nlohmann::json fields = nlohmann::json::parse(event.fields.text());
      out.push_back({step, fields.at("weight"), fields.at("overlap")});
    }
  }
  return out;
}

std::vector<Refresh> refreshes(Session& session, int64_t steps, double rate, bool same_batch) {
  session.learner().begin_run(steps);
  return refreshes_of_steps(session, 0, steps, rate, same_batch);
}

// The most steps from one refresh of a matrix to its next.
int64_t longest_gap(const std::vector<Refresh>& refreshes) {
  std::map<std::string, int64_t> last;
  int64_t longest = 0;
  for (const Refresh& refresh : refreshes) {
    const auto [before, is_first] = last.emplace(refresh.weight, refresh.step);
    if (!is_first) longest = std::max(longest, refresh.step - before->second);
    before->second = refresh.step;
  }
  return longest;
}

TEST(Galore, RefreshesOneAfterAnother) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto session =
      session_of(files, "method=galore projection_update_gap=7 projection_window=2");
  const auto matrices = static_cast<size_t>(7 * files.config.num_hidden_layers);
  std::map<std::string, std::vector<int64_t>> steps;
  std::map<int64_t, size_t> at_once;
  for (const Refresh& refresh : refreshes(*session, 24, 1e-3, false)) {
    steps[refresh.weight].push_back(refresh.step);
    at_once[refresh.step] += 1;
  }
  EXPECT_EQ(steps.size(), matrices);
  for (const auto& [weight, at] : steps) {
    ASSERT_GE(at.size(), 2u) << weight;
    for (size_t i = 1; i < at.size(); ++i) EXPECT_EQ(at[i] - at[i - 1], 7) << weight;
  }
  for (const auto& [step, count] : at_once) EXPECT_LE(count, (matrices + 6) / 7) << step;
}

// The gradient of one batch, and weights that stay: the subspaces come to rest, and gaps grow.
TEST(Galore, LazyRefreshesComeLessOften) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto count = [&](const char* lazy) {
    const auto session = session_of(
        files, std::string("method=galore projection_update_gap=2 lazy_overlap=") + lazy);
    return refreshes(*session, 64, 0.0, true).size();
  };
  const size_t fixed = count("0"), lazy = count("0.9");
  EXPECT_LT(lazy, fixed / 2);
  // Whatever the longest gap, they double: matrices keep the turns that are planned.
  const auto session = session_of(
      files, "method=galore projection_update_gap=2 lazy_overlap=0.9 projection_gap_max=7");
  EXPECT_EQ(longest_gap(refreshes(*session, 64, 0.0, true)), 4);
}

// From a checkpoint on, too, whose gaps have grown beyond it.
TEST(Galore, NoGapIsLongerThanTheLongest) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const std::string lazy = "method=galore projection_update_gap=2 lazy_overlap=0.9 ";
  const auto before = session_of(files, lazy + "projection_gap_max=16");
  EXPECT_EQ(longest_gap(refreshes(*before, 64, 0.0, true)), 16);
  const auto after = session_of(files, lazy + "projection_gap_max=4");
  after->learner().begin_run(128);
  restore_learner(*after, saved(*before));
  EXPECT_EQ(longest_gap(refreshes_of_steps(*after, 64, 128, 0.0, true)), 4);
}

TEST(Galore, RefusesWhatContradicts) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const std::pair<const char*, const char*> cases[] = {
      {"galore_rank=100000", "smaller side"},
      {"galore_rank=0%", "is not a valid rank"},
      {"galore_rank=some", "is not a valid rank"},
      {"galore_target=norm.x", "galore_target"},
      {"galore_target=all-linear,layers.99.q_proj", "layers.99.q_proj is not a linear layer"},
      {"galore_target=.*embed.*", "is not a linear layer"},
      {"galore_scale=0 galore_learning_rate=0.01", "trains nothing"},
      {"galore_learning_rate=0", "trains nothing in a subspace"},
      {"galore_scale=1", "galore_learning_rate, which is auto"},
      {"projection_window=9 projection_update_gap=4", "projection_window"},
      {"projection_gap_max=4", "lazy_overlap"},
      {"projection_gap_max=3 projection_update_gap=2 lazy_overlap=0.01", "twice"},
      {"subspace=random lazy_overlap=0.5", "random"},
      {"subspace=random projection_window=2", "says nothing of subspace=random"},
      {"weight_decay=0.5 galore_learning_rate=40", "a learning rate of"},
  };
  for (const auto& [settings, part] : cases) {
    const std::string refusal = error_of(ErrorKind::usage, [&, s = settings] {
      session_of(files, std::string("method=galore ") + s);
    });
    EXPECT_NE(message_of(refusal).find(part), std::string::npos) << refusal;
  }
  EXPECT_NO_THROW(session_of(files, "method=galore galore_scale=0.250"));
  // A hint may not lead to the next refusal: without lazy_overlap there is no longest gap.
  const std::string short_gap = error_of(ErrorKind::usage, [&] {
    session_of(files,
               "method=galore projection_gap_max=3 projection_update_gap=2 lazy_overlap=0.01");
  });
  EXPECT_EQ(hint_of(short_gap), "gaps only double; raise it, or leave projection_gap_max out");
}

// Nothing is refreshed before the first window ends, however short the gaps after it.
TEST(Galore, WarnsOfAWindowThatOutlastsTheRun) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto session = session_of(files, "method=galore projection_window=30");
  session->learner().begin_run(20);
  EXPECT_EQ(session->learner().notes().warnings,
            std::vector<std::string>{
                "no subspace is refreshed in 20 steps: all stay random; lower projection_window"});
  session->learner().begin_run(60);
  EXPECT_TRUE(session->learner().notes().warnings.empty());
}

TEST(Galore, WarnsOfARankThatIsNotWorthIt) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto session = session_of(files, "method=galore galore_rank=90%");
  session->learner().begin_run(100);
  const LearnerNotes notes = session->learner().notes();
  ASSERT_EQ(notes.warnings.size(), 1u);
  EXPECT_NE(notes.warnings[0].find("breaks even"), std::string::npos) << notes.warnings[0];
}

TEST(Galore, WarnsOfARoundingThatNoStorageNeeds) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const auto warnings_of = [&](const std::string& storage) {
    const auto session =
        session_of(files, "method=galore update_rounding=nearest storage=" + storage);
    session->learner().begin_run(100);
    return session->learner().notes().warnings;
  };
  EXPECT_EQ(warnings_of("f32"),
            std::vector<std::string>{"update_rounding=nearest has no effect: weights are stored "
                                     "exactly, in f32"});
  EXPECT_TRUE(warnings_of("bf16").empty());
}

}  // namespace
}  // namespace jackscrew
