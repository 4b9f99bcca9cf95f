// What becomes of a run's data, through the program.
#include <fmt/format.h>

#include "tests/cli/expect_refused.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

using nlohmann::json;

class SlowData : public ::testing::Test {
 protected:
  SlowData() : tiny_("data") {}

  std::string data(const std::string& more) const {
    return "model=" + tiny_.config() + " tokenizer=bytes sequence_len=64 --json --quiet " + more;
  }
  json stats(const std::string& more) const {
    const Outcome outcome = run("data stats " + data(more));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    return json::parse(outcome.out);
  }
  // 64 MiB of few long records, of which the beginning is kept.
  void write_large_data() const {
    std::string text;
    const std::string answer(size_t{1} << 21, 'x');
    for (int i = 0; i < 33; ++i) text += TinyRun::record("Say " + std::to_string(i), answer);
    tiny_.file("train.jsonl", text);
  }

  TinyRun tiny_;
};

TEST_F(SlowData, SeveralSetsByWeight) {
  const std::string both = "data=" + tiny_.data() + "," + tiny_.eval_data() + " ";
  EXPECT_EQ(stats(both)["examples"], 45);
  EXPECT_EQ(stats(both + "data_weights=0.5,3")["examples"], 35);
  EXPECT_EQ(stats(both + "max_samples=3 data_weights=2,1")["examples"], 9);
  tiny_.must_train("out", both + "data_weights=0.5,3 max_steps=2 packing=false");
  const json start = tiny_.events("out", "start")[0];
  EXPECT_EQ(start["data"], tiny_.data() + ", " + tiny_.eval_data());
  // As a list, and the same run.
  const std::string recipe =
      tiny_.file("run.yaml", "data:\n  - " + tiny_.data() + "\n  - " + tiny_.eval_data() +
                                 "\ndata_weights: [0.5, 3]\npacking: false\nmax_steps: 2\n");
  const std::string settings = "model=" + tiny_.config() +
                               " init=random tokenizer=bytes sequence_len=64 micro_batch_size=2 ";
  const Outcome listed = run("train " + recipe + " " + settings +
                             "threads=1 output_dir=" + tiny_.path("listed").string() + " 2>&1");
  EXPECT_EQ(listed.exit_code, 0) << listed.out;
  EXPECT_EQ(tiny_.losses("listed"), tiny_.losses("out"));
}

// An epoch is what training makes of what is left.
TEST_F(SlowData, StatsAreOfWhatIsNotHeldOut) {
  tiny_.must_train("out", "method=full num_train_epochs=1 packing=false val_size=0.5");
  const json of_run =
      json::parse(run("data stats --json --quiet " + tiny_.path("out/recipe.yaml").string()).out);
  EXPECT_EQ(of_run["records"], 40);
  EXPECT_EQ(of_run["examples"], 40);
  EXPECT_EQ(of_run["held_out"], 20);
  EXPECT_EQ(of_run["steps_per_epoch"], tiny_.events("out", "start")[0]["total_steps"]);
  // Other data are not the recipe's to hold out of; windows of a text are no records.
  const std::string other = "data stats --json --quiet " + tiny_.path("out/recipe.yaml").string() +
                            " val_size=20 sequence_len=64 data=";
  std::string text;
  while (text.size() < 5000) text += "lifting a jack, and more of them\n";
  const json of_text = json::parse(run(other + tiny_.file("long.txt", text)).out);
  EXPECT_EQ(of_text["records"], 1);
  EXPECT_EQ(of_text["held_out"], 20);
  const std::string two = tiny_.file("two.jsonl", R"({"text":"one"}
{"text":"two"}
)");
  const json of_other = json::parse(
      run("data stats --json --quiet " +
          tiny_.file("held.yaml", "val_size: 500\nmodel: " + tiny_.path("out").string() + "\n") +
          " data=" + two)
          .out);
  EXPECT_EQ(of_other["held_out"], 0);
}

// Those of a recipe are of its own data sets, not of others that a command is to look at.
TEST_F(SlowData, ARecipesWeightsAreOfTheDataBesideThem) {
  const std::string recipe = tiny_.file(
      "two.yaml",
      fmt::format("data: [{}, {}]\ndata_weights: [2, 1]\n", tiny_.data(), tiny_.eval_data()));
  const std::string held = " data=" + tiny_.eval_data();
  const std::string model = " init=random tokenizer=bytes sequence_len=64 model=" + tiny_.config();
  const auto examples = [&](const std::string& more) {
    const Outcome outcome = run("data stats tokenizer=bytes --quiet --json " + recipe + more);
    EXPECT_EQ(outcome.exit_code, 0) << more;
    return json::parse(outcome.out)["examples"];
  };
  EXPECT_EQ(examples(""), 85);
  EXPECT_EQ(examples(held), 5);
  EXPECT_EQ(examples(held + " data_weights=3"), 15);
  for (const std::string& command :
       {std::string("eval "), "logits output=" + tiny_.path("logits.safetensors").string() + " "}) {
    const Outcome outcome = run(command + recipe + held + model + " 2>&1");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  }
  for (const std::string& refused :
       {"plan " + recipe + held + model,
        "data stats tokenizer=bytes " + recipe + held + " data_weights=2,1"}) {
    expect_refused(run(refused + kErrorsOnly), 2, {"2 data weights for 1 data set"});
  }
}

// Of as many data sets they count, which need not be meant.
TEST_F(SlowData, ARecipesWeightsForOtherDataAreWarnedOf) {
  const std::string recipe = tiny_.file(
      "two.yaml",
      fmt::format("data: [{0}, {0}]\ndata_weights: [2, 0]\nmax_steps: 1\n", tiny_.data()));
  const std::string both = " data=" + tiny_.data() + "," + tiny_.eval_data();
  const std::string warning = fmt::format(
      "two.yaml:2: data_weights are of the recipe's own data, and count for those of "
      "the command line: 2 of {}, 0 of {}\n",
      tiny_.data(), tiny_.eval_data());
  const std::string model = " init=random tokenizer=bytes sequence_len=64 model=" + tiny_.config();
  const auto warned = [&](const std::string& command) {
    const Outcome outcome = run(command + " 2>&1");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    return outcome.out.find(warning) != std::string::npos;
  };
  EXPECT_TRUE(warned("train " + recipe + both + model +
                     " threads=1 output_dir=" + tiny_.path("weighed").string()));
  const std::string stats = "data stats tokenizer=bytes " + recipe;
  EXPECT_TRUE(warned(stats + both));
  EXPECT_FALSE(warned(stats));
  EXPECT_FALSE(warned(stats + both + " data_weights=2,0"));
}

TEST_F(SlowData, OptionsWithoutEffectOnAnEvaluationAreWarnedOf) {
  tiny_.must_train("model", "method=full max_steps=1");
  const std::string eval = "eval tokenizer=bytes sequence_len=64 seed=7 data=" + tiny_.eval_data();
  const std::string warning = "warning: eval does not use seed without val_size\n";
  const Outcome trained = run(eval + " model=" + tiny_.path("model").string() + kErrorsOnly);
  EXPECT_EQ(trained.exit_code, 0) << trained.out;
  EXPECT_NE(trained.out.find(warning), std::string::npos) << trained.out;
  const Outcome random = run(eval + " init=random model=" + tiny_.config() + kErrorsOnly);
  EXPECT_EQ(random.exit_code, 0) << random.out;
  EXPECT_EQ(random.out.find(warning), std::string::npos) << random.out;
}

TEST_F(SlowData, WeightsThatLeaveNothingOutAreWarnedOf) {
  const std::string both = " data=" + tiny_.data() + "," + tiny_.eval_data();
  for (const std::string what : {"preview", "tokenize"}) {
    const std::string warning =
        "warning: data " + what + " does not use data_weights without a 0 in it\n";
    const auto said = [&](const std::string& weights) {
      return run("data " + what + " tokenizer=bytes" + both + " data_weights=" + weights +
                 kErrorsOnly)
          .out;
    };
    EXPECT_NE(said("2,1").find(warning), std::string::npos) << said("2,1");
    EXPECT_EQ(said("2,0").find(warning), std::string::npos) << said("2,0");
  }
}

TEST_F(SlowData, EvaluationOfSeveralFiles) {
  tiny_.must_train("model", "method=full max_steps=1");
  const auto score = [&](const std::string& files) {
    const Outcome outcome = run("eval model=" + tiny_.path("model").string() +
                                " tokenizer=bytes sequence_len=64 --json data=" + files);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    return json::parse(outcome.out);
  };
  const json a = score(tiny_.data());
  const json b = score(tiny_.eval_data());
  const json both = score(tiny_.data() + "," + tiny_.eval_data());
  EXPECT_FALSE(a.contains("data"));
  EXPECT_EQ(both["data"][tiny_.data()], a);
  EXPECT_EQ(both["data"][tiny_.eval_data()], b);
  for (const char* count : {"tokens", "bytes", "records"}) {
    EXPECT_EQ(both[count].get<int64_t>(), a[count].get<int64_t>() + b[count].get<int64_t>());
  }
  const auto nats = [](const json& result) {
    return result["loss"].get<double>() * result["tokens"].get<double>();
  };
  EXPECT_NEAR(nats(both), nats(a) + nats(b), 1e-9 * nats(both));
}

// What is not trained on is not held out of the training data either.
TEST_F(SlowData, NothingIsHeldOutOfADataSetOfWeightZero) {
  const std::string both = "data=" + tiny_.data() + "," + tiny_.eval_data() + " ";
  tiny_.must_train("held", both + "method=full max_steps=1 val_size=3 data_weights=1,0");
  const std::string held_out = tiny_.events("held", "start")[0]["eval_data_fingerprint"];
  EXPECT_TRUE(held_out.starts_with("3 of 40 examples ")) << held_out;
  const std::string recipe =
      tiny_.file("weights.yaml", fmt::format("data: [{}, {}]\nval_size: 5\ndata_weights: [0, 1]\n",
                                             tiny_.data(), tiny_.eval_data()));
  expect_refused(run("eval " + recipe + " model=" + tiny_.config() +
                     " init=random tokenizer=bytes" + kErrorsOnly),
                 2, {"val_size 5 is too large for 5 examples"});
}

TEST_F(SlowData, ADataSetOfWeightZeroIsNotRead) {
  const std::string both =
      "data=" + tiny_.file("bad.jsonl", "{\"id\": 1}\n") + "," + tiny_.data() + " ";
  EXPECT_EQ(stats(both + "data_weights=0,1")["records"], 40);
  tiny_.must_train("out", both + "method=full max_steps=2 val_size=3 data_weights=0,1");
  EXPECT_EQ(tiny_.losses("out").size(), 2u);
  const std::string recipe = tiny_.path("out/recipe.yaml").string();
  const Outcome scored =
      run("eval --json " + recipe + " model=" + tiny_.path("out").string() + " 2>&1");
  EXPECT_EQ(scored.exit_code, 0) << scored.out;
  expect_refused(run("data stats " + data(both + "data_weights=1,1") + kErrorsOnly), 4,
                 {"bad.jsonl:1"});
}

// What training has learned is not scored as held out.
TEST_F(SlowData, EvalScoresWhatItsRunHeldOut) {
  std::string records;
  for (int i = 0; i < 40; ++i) {
    const std::string number = std::to_string(i);
    records += TinyRun::record(std::string(i % 2 == 0 ? 1 : 30, 'q') + number, number);
  }
  tiny_.must_train(
      "out", "method=full max_steps=2 val_size=0.2 data=" + tiny_.file("both.jsonl", records));
  const fs::path out = tiny_.path("out");
  const std::string settings = " init=pretrained model=" + out.string();
  const std::string eval = "eval --json " + (out / kRecipeName).string() + settings;
  const Outcome scored = run(eval + " 2>" + tiny_.path("said").string());
  ASSERT_EQ(scored.exit_code, 0) << tiny_.text("said");
  const double loss = json::parse(scored.out)["loss"];
  EXPECT_NEAR(loss, tiny_.events("out", "eval").back()["eval_loss"].get<double>(), 1e-6);
  // Said again, it is the same.
  const Outcome again = run(eval + " sequence_len=64" + kErrorsOnly);
  EXPECT_EQ(again.exit_code, 0) << again.out;
  EXPECT_EQ(again.out.find("depends on"), std::string::npos) << again.out;
  for (const char* other : {"seed", "max_samples", "val_size"}) {
    expect_refused(
        run(eval + fmt::format(" {}=7", other) + kErrorsOnly), 2,
        {"may have learned these", "drawn by seed 42", fmt::format("leave out {},", other)});
  }
  // A shorter sequence leaves half of the records without a target.
  const Outcome cut = run(eval + " sequence_len=16" + kErrorsOnly);
  EXPECT_EQ(cut.exit_code, 2);
  EXPECT_NE(cut.out.find("leave out sequence_len,"), std::string::npos) << cut.out;
  // A recipe without a log says what it depends on.
  const std::string alone = tiny_.file("alone.yaml", read_text(out / kRecipeName));
  const auto warned = [&](const std::string& more) {
    const Outcome outcome = run("eval " + alone + settings + more + " 2>&1");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    return outcome.out.find("holds out depends on seed: if training had") != std::string::npos;
  };
  EXPECT_TRUE(warned(" seed=7"));
  EXPECT_FALSE(warned(""));
  EXPECT_FALSE(warned(" seed=7 val_size=0.2"));
}

// Of virtual tokens, which take room from its texts, a base that is scored alone has none.
TEST_F(SlowData, EvalOfABaseCutsTextsAsItsRunDid) {
  tiny_.must_train("base", "method=full max_steps=1");
  std::string text;
  for (int i = 0; i < 200; ++i) text += fmt::format("Line {} of a text.\n", i);
  tiny_.must_train("soft", "method=prompt prompt_tokens=20 max_steps=1 val_size=0.2 data=" +
                               tiny_.file("text.txt", text) +
                               " init=pretrained model=" + tiny_.path("base").string());
  const std::string held_out = tiny_.events("soft", "start")[0]["eval_data_fingerprint"];
  const std::string drawn = held_out.substr(0, held_out.find(" drawn by seed"));
  const std::string eval = "eval " + (tiny_.path("soft") / kRecipeName).string();
  for (const std::string& of : {std::string(), " adapter=" + tiny_.path("soft").string()}) {
    const Outcome scored = run(eval + of + " 2>&1");
    EXPECT_EQ(scored.exit_code, 0) << scored.out;
    EXPECT_NE(scored.out.find("holds out of the data: " + drawn + "\n"), std::string::npos)
        << scored.out;
    EXPECT_EQ(scored.out.find("depends on"), std::string::npos) << scored.out;
  }
  // As many windows begin elsewhere.
  const Outcome shifted = run(eval + " sequence_len=63 2>&1");
  EXPECT_NE(shifted.out.find("sequence_len"), std::string::npos) << shifted.out;
}

// A directory's files are for training or evaluation by their names, and what is not used is said.
TEST_F(SlowData, ADirectoryOfFiles) {
  const fs::path directory = tiny_.path("set");
  fs::create_directories(directory);
  tiny_.file("set/train.jsonl", tiny_.text("train.jsonl"));
  tiny_.file("set/dev.jsonl", tiny_.text("valid.jsonl"));
  tiny_.file("set/more.jsonl", tiny_.text("valid.jsonl"));
  const std::string set = " data=" + directory.string();
  const std::string unread =
      "warning: " + directory.string() +
      ": more.jsonl is not read: other files there are named for this split\n";
  const std::string unused = "warning: " + directory.string() +
                             " also holds evaluation files; eval_data=" + directory.string() +
                             " uses them\n";
  const auto trained = [&](const std::string& more) {
    const Outcome outcome =
        run(tiny_.train("model", "method=full max_steps=1 overwrite=true" + set + more + " 2>&1"));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    return outcome.out;
  };
  const std::string with_both = trained("");
  EXPECT_NE(with_both.find(unread), std::string::npos) << with_both;
  EXPECT_NE(with_both.find(unused), std::string::npos) << with_both;
  const std::string evaluated = trained(" eval_data=" + directory.string());
  EXPECT_EQ(evaluated.find(unused), std::string::npos) << evaluated;
  const std::string of_model =
      " model=" + tiny_.path("model").string() + " tokenizer=bytes sequence_len=64 --json ";
  const std::string eval = "eval" + of_model + "data=";
  const json expected = json::parse(run(eval + tiny_.eval_data()).out);
  EXPECT_NEAR(tiny_.events("model", "eval").back()["eval_loss"].get<double>(),
              expected["loss"].get<double>(), 1e-9);
  const Outcome scored =
      run(eval + directory.string() + " val_size=0.5 2>" + tiny_.path("said").string());
  EXPECT_EQ(json::parse(scored.out), expected);
  const std::string said = tiny_.text("said");
  EXPECT_NE(said.find(unread), std::string::npos) << said;
  EXPECT_NE(said.find("warning: eval does not use val_size beside data\n"), std::string::npos)
      << said;
  // Of the recipe's own data it says what is scored.
  const std::string with_data = tiny_.file("with_data.yaml", "data: " + tiny_.data() + "\n");
  const Outcome split = run("eval " + with_data + of_model + "val_size=0.5 2>&1");
  EXPECT_EQ(split.exit_code, 0) << split.out;
  EXPECT_NE(split.out.find("scoring what val_size holds out"), std::string::npos) << split.out;
  const Outcome trained_on = run("eval " + with_data + of_model + "2>&1");
  EXPECT_EQ(trained_on.exit_code, 0) << trained_on.out;
  EXPECT_NE(trained_on.out.find("scoring the training data: " + tiny_.data() + " (this recipe"),
            std::string::npos)
      << trained_on.out;
  EXPECT_EQ(split.out.find("does not use"), std::string::npos) << split.out;
  const std::string with_both_files =
      tiny_.file("with_both.yaml", "data: " + directory.string() + "\n");
  const Outcome of_evaluation = run("eval " + with_both_files + of_model + "2>&1");
  EXPECT_EQ(of_evaluation.exit_code, 0) << of_evaluation.out;
  EXPECT_NE(of_evaluation.out.find("scoring the evaluation files in " + directory.string() + "\n"),
            std::string::npos)
      << of_evaluation.out;
  EXPECT_EQ(of_evaluation.out.find("the training data"), std::string::npos) << of_evaluation.out;
  // In a recipe it may stand for another command.
  const std::string recipe = tiny_.file("run.yaml", "val_size: 0.5\n");
  const Outcome quiet = run("eval " + recipe + eval.substr(4) + tiny_.eval_data() + " 2>&1");
  EXPECT_EQ(quiet.exit_code, 0);
  EXPECT_EQ(quiet.out.find("val_size"), std::string::npos) << quiet.out;
}

TEST_F(SlowData, WhatIsSkippedIsSaidOfEachSet) {
  const std::string bad = "{\"id\": 1}\n";
  const std::string data = tiny_.file("some.jsonl", tiny_.text("train.jsonl") + bad);
  const std::string held_out = tiny_.file("few.jsonl", tiny_.text("valid.jsonl") + bad + bad);
  const Outcome outcome =
      run(tiny_.train("out", fmt::format("method=full max_steps=1 on_bad_record=skip data={} "
                                         "eval_data={} 2>&1",
                                         data, held_out)));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  for (const std::string& said :
       {data + ": skipped 1 of 41 records", held_out + ": skipped 2 of 7 records"}) {
    EXPECT_NE(outcome.out.find("warning: " + said), std::string::npos) << outcome.out;
  }
}

TEST_F(SlowData, LargeDataAreKeptAsTokens) {
  write_large_data();
  const std::string settings = "save_steps=2 lr_scheduler_type=constant warmup_steps=0 max_steps=";
  const Outcome first = run(tiny_.train("out", settings + "2") + " 2>&1");
  ASSERT_EQ(first.exit_code, 0) << first.out;
  const fs::path kept = tiny_.path("out/tokens/train-1.tokens");
  ASSERT_TRUE(fs::exists(kept));
  const auto written = fs::last_write_time(kept);
  tiny_.must_train("whole", settings + "4");
  // Goes on with the tokens that it finds, to the same weights.
  tiny_.must_train("out", settings + "4");
  EXPECT_EQ(fs::last_write_time(kept), written);
  EXPECT_EQ(tiny_.losses("out"), tiny_.losses("whole"));
  // A command that is refused leaves them as they are.
  const Outcome refused = run(tiny_.train("out", settings + "4 sequence_len=32") + " 2>&1");
  EXPECT_EQ(refused.exit_code, 2) << refused.out;
  EXPECT_NE(refused.out.find("sequence_len was 64 then and is 32 now"), std::string::npos)
      << refused.out;
  EXPECT_EQ(fs::last_write_time(kept), written);
  // Of a run that was killed before it had a log: whole tokens are read, half of them removed.
  const fs::path left = tiny_.path("killed/tokens");
  fs::create_directories(left);
  fs::copy_file(kept, left / kept.filename());
  tiny_.file("killed/tokens/train-2.tokens.jackscrew-part", "half");
  tiny_.must_train("killed", settings + "4");
  EXPECT_EQ(tiny_.losses("killed"), tiny_.losses("whole"));
  EXPECT_FALSE(fs::exists(left / "train-2.tokens.jackscrew-part"));
  // One that starts over with the same data reads them, too.
  tiny_.must_train("out", settings + "4 overwrite=true");
  EXPECT_EQ(fs::last_write_time(kept), written);
  // Another command leaves nothing behind.
  const auto strays = [] {
    int64_t count = 0;
    for (const fs::path& directory : {fs::temp_directory_path(), fs::path("/var/tmp")}) {
      for (const auto& entry : fs::directory_iterator(directory)) {
        count += entry.path().filename().string().starts_with("jackscrew") &&
                         entry.path().string().find(".tokens") != std::string::npos
                     ? 1
                     : 0;
      }
    }
    return count;
  };
  const int64_t before = strays();
  EXPECT_EQ(stats("data=" + tiny_.data())["truncated"], 33);
  EXPECT_EQ(strays(), before);
}

// While it reads large data: from the checkpoint there, whatever has the old name by then.
TEST_F(SlowData, ARunGoesOnInTheDirectoryThatIsMovedWhileItReads) {
  write_large_data();
  const std::string settings = "save_steps=2 lr_scheduler_type=constant warmup_steps=0 max_steps=";
  tiny_.must_train("whole", settings + "4");
  tiny_.must_train("out", settings + "2");
  fs::remove_all(tiny_.path("out/tokens"));
  Child child(tiny_.train("out", settings + "4"), tiny_.path("said"));
  const std::string half = "tokens/train-1.tokens.jackscrew-part";
  ASSERT_TRUE(child.until([&] { return fs::exists(tiny_.path("out") / half); }));
  ASSERT_TRUE(child.halt());
  ASSERT_TRUE(fs::exists(tiny_.path("out") / half)) << "too late";
  fs::rename(tiny_.path("out"), tiny_.path("moved"));
  fs::create_directories(tiny_.path("out/tokens"));
  tiny_.file("out/" + half, "another's");
  const auto before = contents(tiny_.path("out"));
  child.signal(SIGCONT);
  EXPECT_EQ(child.wait(), 0) << tiny_.text("said");
  EXPECT_TRUE(contents(tiny_.path("out")) == before);
  EXPECT_TRUE(fs::exists(tiny_.path("moved/tokens/train-1.tokens")));
  EXPECT_NE(tiny_.text("said").find("/checkpoint-2 at step 2"), std::string::npos)
      << tiny_.text("said");
  EXPECT_EQ(tiny_.losses("moved"), tiny_.losses("whole"));
}

TEST_F(SlowData, ARunThatBeginsAnewRemovesTokensThatItDoesNotRead) {
  tiny_.must_train("out", "max_steps=1");
  fs::create_directories(tiny_.path("out/tokens"));
  for (const char* name : {"train-1", "eval-3", "train-mine"}) {
    tiny_.file(fmt::format("out/tokens/{}.tokens", name), "tokens");
  }
  tiny_.must_train("out", "max_steps=2 overwrite=true");
  EXPECT_EQ(contents(tiny_.path("out/tokens")).size(), 1u);
  EXPECT_TRUE(fs::exists(tiny_.path("out/tokens/train-mine.tokens")));
}

TEST_F(SlowData, ALinkInPlaceOfTheTokensIsRefused) {
  fs::create_directories(tiny_.path("shared"));
  tiny_.must_train("out", "max_steps=1");
  fs::create_directory_symlink(tiny_.path("shared"), tiny_.path("out/tokens"));
  expect_refused(run(tiny_.train("out", "max_steps=2 overwrite=true") + kErrorsOnly), 2,
                 {"out/tokens is a link", "hint: remove the link"});
}

}  // namespace
}  // namespace jackscrew
