// How adapters begin from the values of their weights, and how they are saved.
#include "learners/lora_start.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "session/adapter.h"
#include "session/plan.h"
#include "tests/cli/run_program.h"
#include "tests/support/batches.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"
#include "tests/support/matrices.h"

namespace jackscrew {
namespace {

// One product of twice the rank adds in another order than two: some units in the last place of
// f32.
constexpr double kRounding = 1e-6;

using Matrix = FloatMatrix;

// Runs over the model gqa_tied: hidden 32.
class LoraStartTest : public ::testing::Test {
 protected:
  std::unique_ptr<Session> session(std::vector<std::string> settings) const {
    settings.insert(settings.begin(), "method=lora");
    return make_session(make_recipe(settings), files_, training_use(batch_.tokens));
  }
  // What the model computes with the weights as the adapters leave them, linear by linear.
  static std::map<std::string, Eigen::MatrixXd> effective_weights(Session& run, double scale) {
    const auto parameters = states(run.stage(), StateRole::parameter);
    const auto constants = states(run.stage(), StateRole::constant);
    std::map<std::string, Eigen::MatrixXd> out;
    for (const auto& parameter : run.stage().parameters()) {
      const Weight& weight = *parameter->weight;
      if (weight.spec().kind != WeightKind::linear) continue;
      Matrix values(weight.rows(), weight.cols());
      weight.decode(run.ops(), 0, weight.rows(), view_of(values));
      const std::string path = weight.name().substr(0, weight.name().rfind('.'));
      const auto add = [&](const auto& from, const std::string& suffix) {
        const Tensor a = from.at(path + ".lora_A.weight" + suffix);
        const Tensor b = from.at(path + ".lora_B.weight" + suffix);
        values += static_cast<float>(scale) *
                  Eigen::Map<const Matrix>(b.data<float>(), b.rows(), b.cols()) *
                  Eigen::Map<const Matrix>(a.data<float>(), a.rows(), a.cols());
      };
      add(parameters, "");
      if (!constants.empty()) add(constants, ".initial");
      out[path] = values.template cast<double>();
    }
    return out;
  }
  // The sum of squares of what two models differ by.
  static double distance(const std::map<std::string, Eigen::MatrixXd>& a,
                         const std::map<std::string, Eigen::MatrixXd>& b) {
    double sum = 0.0;
    for (const auto& [path, values] : a) sum += (values - b.at(path)).squaredNorm();
    return sum;
  }
  void refused(const std::string& part, std::vector<std::string> settings) const {
    expect_error(ErrorKind::usage, part, [&] { session(settings)->learner().begin_run(10); });
  }

  const Golden golden_{"gqa_tied"};
  const ModelFiles files_ = open_model(golden_path("gqa_tied").string());
  const StepBatch batch_ = golden_.batch();
};

TEST_F(LoraStartTest, LoftqBringsTheModelBackTowardsItsValues) {
  const auto exact = effective_weights(*session({"lora_rank=4"}), 2.0);
  const auto rounded = effective_weights(*session({"lora_rank=4", "storage=nf4"}), 2.0);
  const auto run = session({"lora_rank=4", "storage=nf4", "lora_init=loftq"});
  const auto begun = effective_weights(*run, 2.0);
  double left = 0.0;
  for (const auto& [path, values] : exact) {
    const Eigen::MatrixXd lost = values - rounded.at(path);
    const double captured = right_singular(lost).eigenvalues().tail(4).sum();
    const double best = lost.squaredNorm() - captured;
    const double now = (values - begun.at(path)).squaredNorm();
    EXPECT_LE(now, best + 0.03 * captured) << path;
    left += now;
  }
  run->learner().begin_run(10);
  const std::string note = run->learner().notes().lines.at(0);
  const double share = 100.0 * (1.0 - left / distance(exact, rounded));
  EXPECT_NE(note.find(fmt::format("({:.1f}% of its square recovered)", share)), std::string::npos)
      << note << " and not " << share;
}

// A model that is quantised already, and the one that it was.
TEST_F(LoraStartTest, LoftqOfAnotherModelsValues) {
  const std::string original = golden_path("gqa_tied").string();
  const auto here = session({"lora_rank=4", "storage=nf4", "lora_init=loftq"});
  const auto there =
      session({"lora_rank=4", "storage=nf4", "lora_init=loftq", "lora_original_model=" + original});
  EXPECT_EQ(state_values(here->stage(), StateRole::parameter),
            state_values(there->stage(), StateRole::parameter));
}

TEST_F(LoraStartTest, PissaBeginsAsTheModelItself) {
  const auto plain = session({"lora_rank=4"});
  const auto run = session({"lora_rank=4", "lora_init=pissa"});
  EXPECT_NEAR(run->loss_sum(batch_) / plain->loss_sum(batch_), 1.0, kRounding);
  EXPECT_LE(distance(effective_weights(*run, 2.0), effective_weights(*plain, 2.0)), 1e-9);
  EXPECT_EQ(run->learner().adapter()["r"], 8);
  EXPECT_EQ(run->learner().adapter()["lora_alpha"], 16);
}

// What rounding took is given back in the directions of the adapter.
TEST_F(LoraStartTest, PissaOverRoundedWeightsHasTheirValuesInItsDirections) {
  const auto exact = effective_weights(*session({"lora_rank=4"}), 2.0);
  const auto rounded = effective_weights(*session({"lora_rank=4", "storage=nf4"}), 2.0);
  const auto run = session({"lora_rank=4", "storage=nf4", "lora_init=pissa"});
  const auto begun = effective_weights(*run, 2.0);
  const auto parameters = states(run->stage(), StateRole::parameter);
  for (const auto& [path, values] : exact) {
    const Tensor b = parameters.at(path + ".lora_B.weight");
    const Eigen::MatrixXd directions =
        Eigen::Map<const Matrix>(b.data<float>(), b.rows(), b.cols()).cast<double>();
    const Eigen::MatrixXd left = values - begun.at(path), lost = values - rounded.at(path);
    EXPECT_LE((directions.transpose() * left).norm(), 1e-4 * directions.norm()) << path;
    EXPECT_LT(left.squaredNorm(), lost.squaredNorm()) << path;
  }
}

// The result is an adapter of twice the rank for the weights as they are: loaded, it computes what
// was trained.
TEST_F(LoraStartTest, PissaIsSavedAsOneAdapter) {
  const fs::path directory =
      fs::temp_directory_path() / fmt::format("jackscrew_pissa_{}", ::getpid());
  for (const char* rslora : {"false", "true"}) {
    const std::vector<std::string> settings = {"lora_rank=4",
                                               "storage=nf4",
                                               "lora_init=pissa",
                                               std::string("use_rslora=") + rslora,
                                               "rank_pattern=down_proj=3",
                                               "alpha_pattern=q_proj=5"};
    const auto run = session(settings);
    for (int64_t step = 0; step < 3; ++step) {
      run->accumulate(batch_, 1e-2, step);
      run->update({});
    }
    const StateSource states = [&](const StateVisitor& visitor) { run->visit(visitor); };
    const nlohmann::json adapter = run->learner().adapter();
    export_adapter(states, run->ops(), adapter, "base", directory);
    int64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(directory)) {
      bytes += static_cast<int64_t>(entry.file_size());
    }
    EXPECT_EQ(bytes, adapter_bytes(states, adapter, "base"));
    // The recipe of the run will do.
    std::vector<std::string> again = settings;
    again.insert(again.end(), {"method=lora", "adapter=" + directory.string()});
    const auto loaded =
        make_session(with_adapter_options(make_recipe(again)), files_, training_use(batch_.tokens));
    load_adapter(loaded->stage(), loaded->ops(), directory);
    loaded->restored();
    EXPECT_NEAR(loaded->loss_sum(batch_) / run->loss_sum(batch_), 1.0, kRounding);
    fs::remove_all(directory);
  }
}

// Its factors are right over weights that are rounded so. Trained further over others, they fit
// those.
TEST_F(LoraStartTest, TheAdapterRemembersWhatItMakesUpFor) {
  const auto base_storage = [&](Session& run) {
    return run.learner().adapter().value("base_storage", "none");
  };
  EXPECT_EQ(base_storage(*session({"storage=nf4"})), "none");
  EXPECT_EQ(base_storage(*session({"lora_rank=4", "lora_init=pissa"})), "none");
  EXPECT_EQ(base_storage(*session({"lora_rank=4", "lora_init=pissa", "storage=f32"})), "none");
  const auto run = session({"lora_rank=4", "lora_init=loftq", "storage=nf4"});
  EXPECT_EQ(base_storage(*run), "nf4");
  const fs::path directory =
      fs::temp_directory_path() / fmt::format("jackscrew_loftq_{}", ::getpid());
  export_adapter([&](const StateVisitor& visitor) { run->visit(visitor); }, run->ops(),
                 run->learner().adapter(), "base", directory);
  const auto values = state_values(run->stage(), StateRole::parameter);
  for (const auto& [storage, expected] :
       {std::pair("nf4", "nf4"), {"int8", "int8"}, {"keep", "none"}}) {
    const Recipe recipe = with_adapter_options(
        make_recipe({"adapter=" + directory.string(), std::string("storage=") + storage}));
    const auto loaded = make_session(recipe, files_, training_use(batch_.tokens));
    load_adapter(loaded->stage(), loaded->ops(), directory);
    loaded->learner().begin_run(10);
    EXPECT_EQ(state_values(loaded->stage(), StateRole::parameter), values);
    EXPECT_TRUE(loaded->learner().notes().lines.empty()) << "it is not begun again";
    EXPECT_EQ(base_storage(*loaded), expected);
    ::testing::internal::CaptureStderr();
    warn_of_adapter(loaded->stage(), directory);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(said.empty(), expected == std::string("nf4")) << said;
    EXPECT_EQ(said.find("set storage=nf4") == std::string::npos, said.empty()) << said;
  }
  fs::remove_all(directory);
}

// The gradients are those of an adapter of twice the rank, of which a half learns.
TEST_F(LoraStartTest, PissaHasTheGradientsOfItsHalf) {
  for (const char* dropout : {"lora_dropout=0", "lora_dropout=0.4"}) {
    const auto run = session({"lora_rank=4", "lora_init=pissa", dropout});
    const auto before = effective_weights(*run, 2.0);
    run->accumulate(batch_, 0.0, 0);
    const auto gradients = state_values(run->stage(), StateRole::gradient);
    // The mean of losses along the gradient, by differences.
    double square = 0.0;
    for (const auto& [name, values] : gradients) {
      for (const float value : values)
        square += static_cast<double>(value) * static_cast<double>(value);
    }
    const double step = 1e-3 / std::sqrt(square);
    const auto move = [&](double by) {
      for (const auto& [name, view] : states(run->stage(), StateRole::parameter)) {
        const std::vector<float>& gradient = gradients.at(name + ".gradient");
        for (int64_t i = 0; i < view.size(); ++i) {
          view.data<float>()[i] +=
              static_cast<float>(by * static_cast<double>(gradient[static_cast<size_t>(i)]));
        }
      }
    };
    const auto loss = [&] {
      run->accumulate(batch_, 0.0, 0);
      return run->update({}).loss;
    };
    run->update({});
    move(step);
    const double above = loss();
    move(-2.0 * step);
    const double below = loss();
    EXPECT_NEAR((above - below) / (2.0 * step), square, 2e-2 * square) << dropout;
  }
}

TEST_F(LoraStartTest, WhatMakesNoSenseIsRefused) {
  refused("nothing is rounded with storage=keep", {"lora_init=loftq"});
  refused("nothing is rounded with storage=f32", {"lora_init=loftq", "storage=f32"});
  refused("rounding has taken nothing",
          {"lora_init=loftq", "lora_original_model=" + golden_path("gqa_tied").string(),
           "lora_rank=4"});
  refused("lora_init is default", {"lora_original_model=elsewhere"});
  refused("use_dora is true, but lora_init is pissa", {"lora_init=pissa", "use_dora=true"});
  refused("rank 64 is more than", {"lora_init=pissa", "lora_rank=64"});
  expect_error(ErrorKind::model, "nowhere", [&] {
    session({"lora_init=loftq", "lora_original_model=nowhere"});
  });
  refused("has no weights", {"lora_init=loftq", "lora_original_model=llama-9m"});
}

TEST_F(LoraStartTest, SaysWhatTheStartTakesOfTheHost) {
  const auto bytes = [](const std::string& settings, const ModelFiles& files) {
    const Recipe recipe = make_recipe(settings_of("sequence_len=16 method=lora " + settings));
    return Session::rehearse(recipe, files, training_use(recipe)).decomposition_bytes;
  };
  // The small problem has 20 vectors at rank 4.
  const int64_t small_problem = 4 * 8 * 20 * 20;
  EXPECT_EQ(bytes("lora_rank=4 lora_init=pissa", files_), small_problem);
  EXPECT_EQ(bytes("lora_rank=4 lora_init=loftq storage=nf4", files_), small_problem);
  EXPECT_EQ(bytes("lora_rank=4", files_), 0);
  // The largest B of the saved adapter, of twice the rank.
  const TemporaryDirectory directory("jackscrew_long_b");
  const ModelFiles wide = open_model(directory.file("config.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64,
      "hidden_size": 16, "intermediate_size": 2048, "num_hidden_layers": 1,
      "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
      "tie_word_embeddings": true})"));
  EXPECT_EQ(bytes("init=random lora_target=up_proj lora_rank=4 lora_init=pissa", wide),
            4 * 2048 * 2 * 4);
}

// As in the recipe of the run that made it.
TEST_F(LoraStartTest, AnAdapterThatIsLoadedIsNotBegunAgain) {
  const Recipe loaded = with_adapter_options(
      make_recipe({"method=lora", "lora_init=loftq", "lora_original_model=elsewhere",
                   "adapter=" + golden_path("lora").string()}));
  EXPECT_EQ(loaded.options.text("lora_original_model"), "");
  EXPECT_NO_THROW(make_session(loaded, files_, training_use(batch_.tokens)));
}

}  // namespace
}  // namespace jackscrew
