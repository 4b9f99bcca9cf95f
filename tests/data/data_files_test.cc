#include "data/data_files.h"

#include <gtest/gtest.h>

#include "tests/data/dataset_fixture.h"
#include "tests/support/read_records.h"

namespace jackscrew {
namespace {

using Warnings = std::vector<std::string>;

class DataFiles : public DatasetTest {
 protected:
  std::string names(DataPart part) const {
    std::string text;
    for (const fs::path& file : DataPlace(directory_).files(part))
      text += file.filename().string() + " ";
    return text;
  }
  Warnings left_out(DataPart part) const { return DataPlace(directory_).left_out_warnings(part); }
  void refuse(DataPart part, const std::string& message) const {
    expect_message(ErrorKind::data, directory_.string() + message, [&] { names(part); });
  }
  std::string hint(DataPart part) const {
    return hint_of(error_of(ErrorKind::data, [&] { names(part); }));
  }
};

TEST_F(DataFiles, AreForBothPartsWhereNoNameChooses) {
  refuse(DataPart::train, " holds no training files");
  refuse(DataPart::evaluation, " holds no files for evaluation");
  write("b.txt", "b b b");
  write("a.jsonl", R"({"text": "first one"})");
  write("readme.md", "not data");
  EXPECT_EQ(names(DataPart::train), "a.jsonl b.txt ");
  EXPECT_EQ(names(DataPart::evaluation), "a.jsonl b.txt ");
  EXPECT_FALSE(DataPlace(directory_).names(DataPart::evaluation));
  EXPECT_EQ(left_out(DataPart::train), Warnings());
  const Dataset both = Dataset::read(directory_, tokenizer_, options(100));
  EXPECT_EQ(decode(both.example(0)), "first one<|im_end|>");
  EXPECT_EQ(decode(both.example(1)), "b b b");
}

TEST_F(DataFiles, AreListedOnce) {
  write("a.txt", "a");
  const DataPlace place(directory_);
  write("b.txt", "b");
  EXPECT_EQ(place.files(DataPart::train).size(), 1u);
  EXPECT_EQ(DataPlace(directory_).files(DataPart::train).size(), 2u);
}

TEST_F(DataFiles, AreChosenByName) {
  for (const char* name :
       {"a.jsonl", "b.txt", "train-01.jsonl", "valid.jsonl", "tester.jsonl", "readme.md"}) {
    write(name, "");
  }
  EXPECT_EQ(names(DataPart::train), "train-01.jsonl ");
  EXPECT_EQ(names(DataPart::evaluation), "valid.jsonl ");
  EXPECT_TRUE(DataPlace(directory_).names(DataPart::evaluation));
  const std::string left = directory_.string() +
                           ": a.jsonl and 2 more are not read: other files there "
                           "are named for this split";
  EXPECT_EQ(left_out(DataPart::train), Warnings{left});
  EXPECT_EQ(left_out(DataPart::evaluation), Warnings{left});
  expect_message(ErrorKind::data, directory_.string() + " has no record",
                 [&] { Dataset::read(directory_, tokenizer_, options(9), DataPart::evaluation); });
}

TEST_F(DataFiles, NamedTestAreForEvaluationWhereNoOthersAre) {
  for (const char* name : {"train-01.jsonl", "valid.jsonl", "test-2.jsonl", "readme.md"}) {
    write(name, "");
  }
  EXPECT_EQ(names(DataPart::evaluation), "valid.jsonl ");
  EXPECT_EQ(left_out(DataPart::train), Warnings());
  EXPECT_EQ(left_out(DataPart::evaluation),
            Warnings{directory_.string() +
                     ": test-2.jsonl is not read: other files there are named for this split"});
  fs::remove(directory_ / "valid.jsonl");
  EXPECT_EQ(names(DataPart::evaluation), "test-2.jsonl ");
  fs::remove(directory_ / "train-01.jsonl");
  refuse(DataPart::train, " holds no training files");
  EXPECT_NE(hint(DataPart::train).find("test-2.jsonl"), std::string::npos);
}

TEST_F(DataFiles, AreNamedByAWord) {
  for (const char* name : {"train1.jsonl", "train_2.jsonl", "trainer.jsonl", "test1.jsonl"}) {
    write(name, "");
  }
  EXPECT_EQ(names(DataPart::train), "train1.jsonl train_2.jsonl ");
  EXPECT_EQ(names(DataPart::evaluation), "test1.jsonl ");
  EXPECT_EQ(left_out(DataPart::train),
            Warnings{directory_.string() +
                     ": trainer.jsonl is not read: other files there are named for this split"});
  fs::remove(directory_ / "train1.jsonl");
  fs::remove(directory_ / "train_2.jsonl");
  EXPECT_EQ(hint(DataPart::train),
            "files there are named for other splits: test1.jsonl; a file given by its own path is "
            "read whatever its name");
}

TEST_F(DataFiles, AreNamedInCapitalsToo) {
  for (const char* name : {"Train.jsonl", "TEST.jsonl", "Dev-1.jsonl"}) write(name, "");
  EXPECT_EQ(names(DataPart::train), "Train.jsonl ");
  EXPECT_EQ(names(DataPart::evaluation), "Dev-1.jsonl ");
}

// The keywords of Hugging Face's datasets, wherever they stand.
TEST_F(DataFiles, AreNamedByKeywordsAnywhere) {
  for (const char* held_out : {"val.jsonl", "alpaca_val.jsonl", "my-dev2.jsonl", "a.valid.json"}) {
    for (const char* train : {"train.jsonl", "training.jsonl", "alpaca train.jsonl", "2train.txt",
                              "alpaca_eval-train.jsonl", "train(1).jsonl"}) {
      SCOPED_TRACE(std::string(train) + " beside " + held_out);
      const fs::path files[] = {write(train, ""), write(held_out, ""), write("x_test.jsonl", "")};
      EXPECT_EQ(names(DataPart::train), std::string(train) + " ");
      EXPECT_EQ(names(DataPart::evaluation), std::string(held_out) + " ");
      for (const fs::path& file : files) fs::remove(file);
    }
  }
  for (const char* test : {"testing.jsonl", "eval.jsonl", "evaluation.csv", "alpaca_test.jsonl",
                           "train-test.jsonl", "test_contest.jsonl"}) {
    SCOPED_TRACE(test);
    write(test, "");
    refuse(DataPart::train, " holds no training files");
    EXPECT_EQ(names(DataPart::evaluation), std::string(test) + " ");
    fs::remove(directory_ / test);
  }
  for (const char* neither :
       {"contest.jsonl", "values.jsonl", "trained.jsonl", "d\u00E9val.jsonl", "devset.jsonl"}) {
    SCOPED_TRACE(neither);
    write(neither, "");
    EXPECT_FALSE(DataPlace(directory_).names(DataPart::evaluation));
    EXPECT_EQ(names(DataPart::train), std::string(neither) + " ");
    fs::remove(directory_ / neither);
  }
}

TEST_F(DataFiles, HeldOutAreForEvaluation) {
  for (const char* name : {"heldout.jsonl", "held_out-2.jsonl", "Held-Out.jsonl", "train.jsonl"}) {
    write(name, "");
  }
  EXPECT_EQ(names(DataPart::train), "train.jsonl ");
  EXPECT_EQ(names(DataPart::evaluation), "Held-Out.jsonl held_out-2.jsonl heldout.jsonl ");
  EXPECT_EQ(left_out(DataPart::train), Warnings());
  fs::remove(directory_ / "train.jsonl");
  refuse(DataPart::train, " holds no training files");
}

TEST_F(DataFiles, DescriptionsOfDataAreNone) {
  for (const char* name : {"README.txt", "license-MIT.txt"}) write(name, "about them");
  const std::string described = "README.txt and license-MIT.txt";
  EXPECT_EQ(hint(DataPart::train), "files there are named as descriptions of data: " + described +
                                       "; a file given by its own path is read whatever its name");
  for (const char* name : {"a.jsonl", "licenses.txt", "readme.jsonl"}) write(name, "");
  for (const DataPart part : {DataPart::train, DataPart::evaluation}) {
    EXPECT_EQ(names(part), "a.jsonl licenses.txt readme.jsonl ");
    EXPECT_EQ(left_out(part), Warnings{directory_.string() + ": " + described +
                                       " are not read: named as a description of data"});
  }
}

TEST_F(DataFiles, ThatMightBeMeantAreWarnedOf) {
  write("train-1.jsonl", "");
  write("readme.md", "");
  fs::create_symlink(directory_ / "nowhere", directory_ / "train-2.jsonl");
  fs::create_symlink(directory_ / "circle", directory_ / "circle");
  write("train-3.jsonl.gz", "");
  write("train-4.jsonl.zst", "");
  write("._train-1.jsonl", "what a Mac writes beside it");
  const std::string directory = directory_.string();
  EXPECT_EQ(names(DataPart::train), "train-1.jsonl ");
  EXPECT_EQ(
      left_out(DataPart::train),
      (Warnings{directory + ": train-3.jsonl.gz and train-4.jsonl.zst are not read: .jsonl, .json, "
                            ".csv and .txt are read; unpack it first",
                directory + ": train-2.jsonl is not read: not a regular file, or a broken "
                            "link"}));
}

// A part of the data must not be learned for all of them.
TEST_F(DataFiles, ThatCannotBeLookedAtAreAnError) {
  const std::string too_long(300, 'x');  // no name of any file
  write("train-1.jsonl", "");
  fs::create_symlink(too_long, directory_ / "notes.pdf");
  fs::create_symlink(too_long, directory_ / "deeper");
  EXPECT_EQ(names(DataPart::train), "train-1.jsonl ");
  EXPECT_EQ(left_out(DataPart::train), Warnings());
  const fs::path unknown = directory_ / "train-2.jsonl";
  fs::create_symlink(too_long, unknown);
  const std::string message = "cannot look at " + unknown.string() + ": File name too long";
  for (const fs::path& path : {directory_, unknown}) {
    const std::string error = error_of(ErrorKind::data, [&] { DataPlace place(path); });
    EXPECT_EQ(message_of(error), message);
    EXPECT_NE(hint_of(error).find("make it readable"), std::string::npos) << error;
  }
}

// Whatever it is, but for what stands beside data as a rule.
TEST_F(DataFiles, OfOtherKindsAreWarnedOf) {
  write("a.jsonl", "");
  for (const char* beside : {"README", "README.md", "LICENSE", "license-MIT.rst", "card.yaml",
                             "card.YML", "load.py", ".gitattributes"}) {
    write(beside, "");
  }
  EXPECT_EQ(left_out(DataPart::train), Warnings());
  const std::string read = " is not read: .jsonl, .json, .csv and .txt are read";
  for (const auto& [name, hint] :
       {std::pair("b.ndjson", "; name it .jsonl"), std::pair("b.JsonLines", "; name it .jsonl"),
        std::pair("b.tsv", "; write it with commas, as .csv"), std::pair("b.feather", ""),
        std::pair("b", ""), std::pair("b.tgz", "; unpack it first"),
        std::pair("b.jsonl.lz4", "; unpack it first")}) {
    write(name, "");
    for (const DataPart part : {DataPart::train, DataPart::evaluation}) {
      EXPECT_EQ(left_out(part), Warnings{directory_.string() + ": " + name + read + hint});
    }
    fs::remove(directory_ / name);
  }
}

// What lies deeper is not read, and is mentioned where it is data.
TEST_F(DataFiles, InDirectoriesOfADirectoryAreNotRead) {
  write("readme.md", "not data");
  fs::create_directories(directory_ / "deeper");
  fs::create_directories(directory_ / "empty");
  write("deeper/a.jsonl", "");
  EXPECT_NE(hint(DataPart::train).find((directory_ / "deeper").string()), std::string::npos);
  write("a.jsonl", "");
  EXPECT_EQ(left_out(DataPart::train),
            Warnings{directory_.string() + ": subdirectories are not read: deeper"});
}

TEST_F(DataFiles, AreNotMatchedByPatterns) {
  write("a1.jsonl", "");
  const std::string error = error_of(ErrorKind::data, [&] { DataPlace(directory_ / "a*.jsonl"); });
  EXPECT_TRUE(message_of(error).ends_with("a*.jsonl does not exist")) << error;
  EXPECT_EQ(hint_of(error),
            "* and ? match no files here: give their directory, or several as a.jsonl,b.jsonl");
}

TEST_F(DataFiles, MayHaveCommasInTheirNames) {
  const auto hint_for = [](const std::vector<std::string>& paths) {
    return hint_of(error_of(ErrorKind::data, [&] { data_places(paths); }));
  };
  const std::string a = (directory_ / "a").string();
  EXPECT_EQ(hint_for({a, "b.jsonl"}), "check the path");
  write("a,b.jsonl", "");
  EXPECT_EQ(hint_for({a, "b.jsonl"}), "a comma of a name is written \\,: '" + a + "\\,b.jsonl'");
  write("a, c.jsonl", "");
  EXPECT_EQ(hint_for({a, "c.jsonl"}), "a comma of a name is written \\,: '" + a + "\\, c.jsonl'");
  EXPECT_EQ(hint_for({a, "d.jsonl"}), "check the path");
}

TEST_F(DataFiles, OfOtherKindsAreRefusedWithWhatToDo) {
  for (const auto& [name, hint] : std::vector<std::pair<std::string, std::string>>{
           {"a.parquet", "datasets.load_dataset(\"parquet\", data_files=\""},
           {"a.arrow", "datasets.load_dataset(\"arrow\", data_files=\""},
           {"a.jsonl.gz", ".jsonl, .json, .csv and .txt are read; unpack it first"},
           {"a.xml", ".jsonl, .json, .csv and .txt are read"}}) {
    const fs::path directory = directory_ / fmt::format("of {}", name);
    fs::create_directory(directory);
    const fs::path path = directory / name;
    write_text_atomic(path, "x");
    const std::string file = error_of(ErrorKind::data, [&] {
      read_records({{path}}, 0, [](const Record&, const std::string&) { return true; });
    });
    EXPECT_TRUE(message_of(file).ends_with(name + ": unknown kind of data file")) << file;
    EXPECT_TRUE(hint_of(file).find(hint) != std::string::npos) << file;
    const std::string all =
        error_of(ErrorKind::data, [&] { DataPlace(directory).files(DataPart::train); });
    EXPECT_TRUE(message_of(all).ends_with("holds no training files")) << all;
    EXPECT_EQ(hint_of(all), hint_of(file));
  }
}

}  // namespace
}  // namespace jackscrew
