// The page of a run: what it shows, what it escapes, and how a browser takes it.
#include "report/report.h"

#include <fmt/format.h>

#include <cmath>

#include "report/comparison_page.h"
#include "report/event_log.h"
#include "report/svg_chart.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

using nlohmann::json;

int64_t count(const std::string& text, const std::string& part) {
  int64_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Every element that is opened is closed, in order.
void expect_well_formed(const std::string& html) {
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = html.substr(at + 1, end - at - 1);
    if (tag[0] == '!' || tag.ends_with('/') || tag.starts_with("meta")) continue;
    const std::string name =
        tag.substr(tag[0] == '/' ? 1 : 0, tag.find_first_of(" /", 1) - (tag[0] == '/' ? 1 : 0));
    if (tag[0] != '/') {
      open.push_back(name);
      continue;
    }
    ASSERT_FALSE(open.empty()) << tag;
    EXPECT_EQ("/" + open.back(), tag);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty());
}

// The page of a run that has such a name, log and recipe.
std::string render_report(const std::string& title, const std::vector<json>& events,
                          const std::string& recipe_yaml) {
  const TemporaryDirectory directory("jackscrew_report_page");
  std::string log;
  for (const json& event : events) log += event.dump() + "\n";
  fs::create_directories(directory.path() / title);
  directory.file(title + "/" + kLogName, log);
  directory.file(title + "/recipe.yaml", recipe_yaml);
  return read_text(write_report(directory.path() / title));
}

std::vector<json> some_events() {
  std::vector<json> events = {
      {{"event", "start"},
       {"step", 0},
       {"time", 1000.0},
       {"model", "a <b> & c"},
       {"parameters", 1000},
       {"trained", 10},
       {"total_steps", 400},
       {"method", "full"}},
      {{"event", "booked"}, {"step", 0}, {"time", 1000.0}, {"weights", 4096}},
      {{"event", "sample"},
       {"step", 0},
       {"time", 1001.0},
       {"index", 0},
       {"prompt", "<script>"},
       {"expected", "x"},
       {"answer", "before it"}},
      {{"event", "eval"}, {"step", 0}, {"time", 1002.0}, {"eval_loss", 5.0}}};
  for (int step = 1; step <= 400; ++step) {
    events.push_back({{"event", "step"},
                      {"step", step},
                      {"time", 1002.0 + step},
                      {"loss", 5.0 - 0.01 * step},
                      {"learning_rate", 1e-4},
                      {"grad_norm", 1.0},
                      {"tokens_per_second", 100.0}});
  }
  events.push_back({{"event", "booked"}, {"step", 200}, {"time", 1402.0}, {"weights", 8192}});
  events.push_back({{"event", "eval"}, {"step", 400}, {"time", 1402.0}, {"eval_loss", 1.25}});
  events.push_back({{"event", "sample"},
                    {"step", 400},
                    {"time", 1403.0},
                    {"index", 0},
                    {"prompt", "<script>"},
                    {"expected", "x"},
                    {"answer", std::string("after it\x1b\0!", 11)}});
  return events;
}

TEST(Report, ShowsWhatTheLogHas) {
  const std::string page = render_report("my run", some_events(), "learning_rate: 1e-4 # <");
  expect_well_formed(page);
  for (const char* part :
       {"my run", "1.2500", "held-out loss before", "400 of 400", "before it",
        "after it\uFFFD\uFFFD!", "learning_rate: 1e-4 # &lt;", "a &lt;b&gt; &amp; c"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(count(page, "<svg"), 5);
  // Nothing runs, nothing is fetched.
  for (const char* part : {"<script", "http", "src=", "url(", "@import"}) {
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  }
}

// Logs are not trusted; a value like this one could not even be copied.
TEST(Report, LeavesOutWhatIsNestedTooDeep) {
  std::string deep(200000, '[');
  deep += std::string(200000, ']');
  const TemporaryDirectory directory("jackscrew_deep_log");
  directory.file(kLogName, fmt::format("{{\"event\": \"start\", \"step\": 0, \"model\": {}}}\n"
                                       "{{\"event\": \"warn\", \"step\": 1, \"message\": {}}}\n",
                                       deep, deep));
  expect_well_formed(read_text(write_report(directory.path())));
}

// Where a model has learned to say nothing, that is an answer.
TEST(Report, SaysWhereAnAnswerIsNothing) {
  std::vector<json> events = {{{"event", "sample"},
                               {"step", 0},
                               {"index", 0},
                               {"prompt", "a"},
                               {"expected", ""},
                               {"answer", "before it"}}};
  std::string page = render_report("run", events, "");
  EXPECT_EQ(count(page, "(nothing)"), 1);
  EXPECT_EQ(count(page, "<span>after</span>"), 0) << "the run has not come so far";
  events.push_back(events[0]);
  events[1]["step"] = 4;
  events[1]["answer"] = "";
  page = render_report("run", events, "");
  EXPECT_EQ(count(page, "<span>after</span><div>(nothing)</div>"), 1) << page;
}

TEST(Report, ShowsRanksAndSubspaces) {
  const std::vector<json> events = {
      {{"event", "start"}, {"step", 0}},
      {{"event", "refresh"}, {"step", 8}, {"weight", "a<"}, {"overlap", 0.25}, {"next", 16}},
      {{"event", "refresh"}, {"step", 16}, {"weight", "a<"}, {"overlap", 0.5}, {"next", 48}},
      {{"event", "rank"},
       {"step", 48},
       {"rank", 1},
       {"host", "bert<"},
       {"device", {{"peak", 1 << 20}}},
       {"waited_share", 0.125},
       {"sent_stream", 1024},
       {"sent_gradient", 1024}},
      {{"event", "memory"}, {"step", 48}, {"host", {{"peak", 3 << 20}}}}};
  const std::string page = render_report("run", events, "");
  expect_well_formed(page);
  for (const char* part : {"rank 1 on bert&lt;", "1.0 MiB", "steps waited 12% of their time",
                           "sent 2.0 KiB", "a&lt;", "2 refreshes", "overlap 0.50 at the last",
                           "gap of 32 steps", "<td>memory on the host</td><td>3.0 MiB</td>"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
}

TEST(Report, SaysHowFarAnInterruptedRunIs) {
  const std::vector<json> events = {
      {{"event", "start"}, {"step", 0}, {"total_steps", 60}},
      {{"event", "eval"}, {"step", 0}, {"eval_loss", 5.0}},
      {{"event", "step"}, {"step", 25}, {"loss", 4.5}},
      {{"event", "save"}, {"step", 27}, {"path", "out/checkpoint-27"}}};
  const std::string page = render_report("run", events, "");
  for (const char* part : {"27 of 60", "steps so far", "loss of step 25", "held-out loss before"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(page.find("at the end"), std::string::npos);
  EXPECT_EQ(page.find("loss of the last step"), std::string::npos);

  std::vector<json> later = events;
  later.push_back({{"event", "eval"}, {"step", 27}, {"eval_loss", 4.0}});
  EXPECT_NE(render_report("run", later, "").find("held-out loss at step 27"), std::string::npos);

  // One that had ended and goes on.
  later.push_back({{"event", "end"}, {"step", 27}});
  EXPECT_NE(render_report("run", later, "").find("held-out loss at the end"), std::string::npos);
  later.push_back({{"event", "start"}, {"step", 27}, {"total_steps", 90}});
  later.push_back({{"event", "step"}, {"step", 30}, {"loss", 4.0}});
  const std::string continued = render_report("run", later, "");
  for (const char* part : {"30 of 90", "steps so far", "held-out loss at step 27"}) {
    EXPECT_NE(continued.find(part), std::string::npos) << part;
  }
}

// The result may be of an earlier step than the last.
TEST(Report, ShowsTheLossThatTheResultHas) {
  std::vector<json> events = {{{"event", "start"}, {"step", 0}},
                              {{"event", "eval"}, {"step", 4}, {"eval_loss", 2.5}},
                              {{"event", "eval"}, {"step", 8}, {"eval_loss", 3.5}},
                              {{"event", "end"}, {"step", 8}}};
  const std::string last = render_report("run", events, "");
  EXPECT_NE(last.find("<b>3.5000</b><span>held-out loss at the end<"), std::string::npos) << last;
  EXPECT_NE(last.find("the best, at step 4"), std::string::npos) << last;
  events.back()["result_step"] = 4;
  const std::string best = render_report("run", events, "");
  EXPECT_NE(best.find("<b>2.5000</b><span>held-out loss of the result, of step 4<"),
            std::string::npos)
      << best;
  EXPECT_EQ(best.find("at the end"), std::string::npos) << best;
  EXPECT_EQ(best.find("the best, at step"), std::string::npos) << "it is shown already";
}

// A repeated command may spell output_dir in another way.
TEST(Report, ShowsAnExportOnce) {
  const std::vector<json> events = {
      {{"event", "start"}, {"step", 0}},
      {{"event", "end"}, {"step", 8}},
      {{"event", "export"}, {"step", 8}, {"format", "gguf"}, {"path", "out/exports/m.gguf"}},
      {{"event", "export"}, {"step", 8}, {"format", "gguf"}, {"path", "/a/out/exports/m.gguf"}}};
  const std::string page = render_report("run", events, "");
  EXPECT_EQ(count(page, "exports/m.gguf"), 1) << page;
  EXPECT_EQ(count(page, "<td>/a/out/exports/m.gguf</td>"), 1) << page;
}

// What another process adds to a finished run a day later is not training.
TEST(Report, CountsTheTimeOfTraining) {
  std::vector<json> events = {{{"event", "start"}, {"step", 0}, {"time", 0}},
                              {{"event", "step"}, {"step", 1}, {"time", 60}, {"loss", 4.0}},
                              {{"event", "end"}, {"step", 1}, {"time", 61}}};
  const std::string page = render_report("run", events, "");
  const size_t at = page.find("in training");
  ASSERT_NE(at, std::string::npos);
  const std::string told = page.substr(at - 40, 40);
  EXPECT_NE(told.find("1m01s"), std::string::npos) << told;
  for (const char* event : {"sample", "export"}) {
    events.push_back({{"event", event}, {"step", 1}, {"time", 86461}});
    EXPECT_NE(render_report("run", events, "").find(told + "in training"), std::string::npos);
  }
  events.push_back({{"event", "start"}, {"step", 1}, {"time", 90000}});
  events.push_back({{"event", "step"}, {"step", 2}, {"time", 90060}, {"loss", 4.0}});
  EXPECT_EQ(render_report("run", events, "").find(told + "in training"), std::string::npos);
}

// A run that goes on removes what was exported of the result before.
TEST(Report, ListsTheExportsOfThePresentResult) {
  const json end = {{"event", "end"}, {"step", 2}};
  const json exported = {{"event", "export"}, {"step", 2}, {"path", "exports/m.gguf"}};
  const auto listed = [](const std::vector<json>& events) {
    return count(render_report("run", events, ""), "exports/m.gguf");
  };
  std::vector<json> events = {{{"event", "start"}, {"step", 0}}, end, exported};
  EXPECT_EQ(listed(events), 1);
  events.push_back(exported);  // somebody had removed it
  EXPECT_EQ(listed(events), 1);
  events.push_back({{"event", "start"}, {"step", 2}});
  EXPECT_EQ(listed(events), 1) << "it is still there";
  events.push_back(end);
  EXPECT_EQ(listed(events), 0);
  events.push_back(exported);
  EXPECT_EQ(listed(events), 1);
}

TEST(Report, TakesALogOfAnyKind) {
  for (const std::vector<json>& events :
       {std::vector<json>{}, std::vector<json>{json{{"event", 3}, {"step", 0}}},
        std::vector<json>{json{{"event", "step"}, {"step", 1}, {"loss", nullptr}}},
        std::vector<json>{json{{"event", "step"}, {"step", 1}, {"loss", "x"}, {"time", {1}}}},
        std::vector<json>{json{{"event", "memory"}, {"step", 1}, {"device", 7}}},
        std::vector<json>{json{{"event", "eval"}, {"step", 1}, {"eval_loss", 1e300}},
                          json{{"event", "eval"}, {"step", 1}, {"eval_loss", -1e300}}},
        std::vector<json>{json{{"event", "booked"}, {"step", 5}, {"weights", 0}},
                          json{{"event", "warn"}, {"step", 5}, {"message", "<&>"}}}}) {
    std::vector<json> log = {json{{"event", "start"}, {"step", 0}}};
    log.insert(log.end(), events.begin(), events.end());
    expect_well_formed(render_report("run", log, ""));
  }
}

// As a sanitizer sees: no integer has them.
TEST(Report, TakesNumbersThatAreAbsurd) {
  for (const double absurd : {1e300, -1e300}) {
    const std::string page =
        render_report("run",
                      {{{"event", "start"},
                        {"step", 0},
                        {"time", absurd},
                        {"model", "m"},
                        {"trained", absurd},
                        {"parameters", absurd}},
                       {{"event", "sample"}, {"step", 0}, {"index", absurd}, {"answer", "a"}},
                       {{"event", "memory"}, {"step", 1}, {"device", {{"peak", absurd}}}},
                       {{"event", "rank"},
                        {"step", 1},
                        {"rank", 0},
                        {"device", {{"peak", absurd}}},
                        {"sent_stream", absurd}},
                       {{"event", "export"}, {"step", 1}, {"path", "m.gguf"}, {"bytes", absurd}}},
                      "");
    expect_well_formed(page);
    EXPECT_NE(
        page.find(absurd > 0 ? "<td>9999-12-31 23:59 UTC</td>" : "<td>1970-01-01 00:00 UTC</td>"),
        std::string::npos)
        << page;
  }
}

TEST(Report, ShowsARateBelowOneTokenASecond) {
  const std::vector<json> log = {
      json{{"event", "start"}, {"step", 0}},
      json{{"event", "step"}, {"step", 1}, {"loss", 1.0}, {"tokens_per_second", 0.34}}};
  EXPECT_NE(render_report("run", log, "").find("<b>0.34</b><span>tokens a second"),
            std::string::npos);
}

TEST(Charts, LeaveOutWhatIsNotFinite) {
  EXPECT_EQ(line_chart({.title = "x", .series = {}}), "");
  const std::vector<ChartPoint> points = {{0, 1}, {1, NAN}, {2, INFINITY}, {3, 2}};
  const std::string chart = line_chart({.title = "x", .series = {{"loss", 1, points}}});
  EXPECT_EQ(chart.find("nan"), std::string::npos);
  EXPECT_EQ(chart.find("inf"), std::string::npos);
  // Many points become a band with a line of means in it.
  std::vector<ChartPoint> many;
  for (int i = 0; i < 100000; ++i) many.push_back({static_cast<double>(i), std::sin(i)});
  const std::string band = line_chart({.title = "x", .series = {{"loss", 1, many}}});
  EXPECT_EQ(count(band, "class=\"band"), 1);
  EXPECT_LT(band.size(), 30000u);
}

// Numbers that differ in their last bit alone: counting on from one never reaches the other.
TEST(Charts, EndWhereValuesAreAsGoodAsEqual) {
  for (const double value : {2.3, 5.7, 1e15}) {
    const std::vector<ChartPoint> points = {{0, value}, {1, std::nextafter(value, 2 * value)}};
    EXPECT_LT(line_chart({.title = "x", .series = {{"loss", 1, points}}}).size(), 10000u);
  }
}

// A tick has as many digits as tell it from the next, however little of a value a range is.
TEST(Charts, NameEveryTickOnce) {
  const auto labels = [](const std::string& drawn, const std::string& axis) {
    std::vector<std::string> out;
    const std::string before = "class=\"" + axis + "\">";
    for (size_t at = drawn.find(before); at != std::string::npos; at = drawn.find(before, at)) {
      at += before.size();
      out.push_back(drawn.substr(at, drawn.find('<', at) - at));
    }
    return out;
  };
  using Labels = std::vector<std::string>;
  const auto of_y = [&](double low, double high) {
    return labels(line_chart({.title = "x", .series = {{"", 1, {{0, low}, {1, high}}}}}), "ytick");
  };
  EXPECT_EQ(of_y(2, 3), (Labels{"2", "2.5", "3"}));
  EXPECT_EQ(of_y(2.34509, 2.34541), (Labels{"2.3451", "2.3452", "2.3453", "2.3454"}));
  EXPECT_EQ(of_y(2.345609, 2.345641), (Labels{"2.34561", "2.34562", "2.34563", "2.34564"}));
  EXPECT_EQ(of_y(0, 1.9e-5), (Labels{"0", "5e-06", "1e-05", "1.5e-05"}));
  EXPECT_EQ(of_y(12000, 15000), (Labels{"12.0k", "13.0k", "14.0k", "15.0k"}));
  EXPECT_EQ(of_y(12340, 12370), (Labels{"12.34k", "12.35k", "12.36k", "12.37k"}));
  EXPECT_EQ(of_y(1234500, 1234800), (Labels{"1.2345M", "1.2346M", "1.2347M", "1.2348M"}));
  EXPECT_EQ(of_y(-1e308, 1e308), Labels{});
  constexpr double kMiB = 1048576;
  const auto of_x = [&](double low, double high) {
    return labels(size_chart({.title = "x", .series = {{"", 1, {{low, 1}, {high, 2}}}}}), "xtick");
  };
  EXPECT_EQ(of_x(1 * kMiB, 5 * kMiB),
            (Labels{"1.0 MiB", "2.0 MiB", "3.0 MiB", "4.0 MiB", "5.0 MiB"}));
  EXPECT_EQ(of_x(4096 * kMiB, 4128 * kMiB),
            (Labels{"4.000 GiB", "4.008 GiB", "4.016 GiB", "4.023 GiB", "4.031 GiB"}));
}

TEST(Charts, StackInOrder) {
  const Chart chart{
      .title = "memory",
      .unit = ChartUnit::bytes,
      .series = {{"a", 1, {{0, 1048576}, {5, 2097152}}}, {"b", 2, {{0, 1048576}, {5, 1048576}}}}};
  const std::string drawn = stacked_chart(chart);
  EXPECT_EQ(count(drawn, "class=\"area"), 2);
  EXPECT_NE(drawn.find("1.0 MiB"), std::string::npos);
  EXPECT_EQ(stacked_chart({.title = "none", .series = {}}), "");
}

TEST(ReportProgram, IsWrittenByTrainAndAgain) {
  const TinyRun tiny("report");
  tiny.must_train("out", "method=full max_steps=4 eval_steps=2 eval_data=" + tiny.eval_data());
  const std::string page = tiny.text("out/report.html");
  expect_well_formed(page);
  EXPECT_NE(page.find("Say 0"), std::string::npos);
  EXPECT_NE(page.find("Answers before and after"), std::string::npos);
  const fs::path file = tiny.path("out/report.html");
  fs::remove(file);
  const Outcome outcome = run("report " + tiny.path("out").string());
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out, file.string() + "\n");
  EXPECT_EQ(tiny.text("out/report.html"), page);
  // However the directory is spelled.
  for (const std::string& spelled : {std::string("../out/"), std::string(".")}) {
    const Outcome there = run_shell("cd " + tiny.path("out").string() + " && " + kProgram +
                                    " report " + spelled + " output_dir=elsewhere 2>&1");
    EXPECT_NE(there.out.find("warning: report does not use output_dir beside a directory\n"),
              std::string::npos)
        << there.out;
    EXPECT_EQ(tiny.text("out/report.html"), page) << spelled;
  }
  const Outcome none = run("report " + tiny.path("nothing").string() + " 2>&1");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.out.find("is not a run directory"), std::string::npos) << none.out;
  // Answers are extra work, and can be left out; training does not change with them.
  const std::string weights = tiny.text("out/model.safetensors");
  tiny.must_train("plain", "method=full max_steps=4 report_samples=0");
  EXPECT_EQ(tiny.text("plain/report.html").find("Answers before"), std::string::npos);
  EXPECT_TRUE(weights == tiny.text("plain/model.safetensors"));
}

TEST(ComparisonPage, HasARowAndTwoPointsForEveryModel) {
  const std::vector<ComparedModel> models = {{"first", 4 << 20, 3.5, 0, 1, 100},
                                             {"a <b> & c", 2 << 20, 3.75, 0.125, 0.875, 200},
                                             {"broken", 1 << 20, NAN, NAN, 0, 300}};
  const std::string page = render_comparison(models, "held out.txt", 1234);
  expect_well_formed(page);
  EXPECT_EQ(page.find("<b> &"), std::string::npos);
  // Of each its name in the table, in the legends and, where the value is a number, at its points.
  EXPECT_EQ(count(page, "a &lt;b&gt; &amp; c"), 5);
  EXPECT_EQ(count(page, "<circle"), 4);
  EXPECT_NE(page.find("<td>2.0 MiB</td><td>50.0 %</td><td>3.7500</td><td>1.25e-01</td>"
                      "<td>87.50 %</td><td>200.0</td>"),
            std::string::npos)
      << page;
  EXPECT_NE(page.find("1234 tokens of held out.txt"), std::string::npos);
  EXPECT_NE(page.find("<th>same token</th>"), std::string::npos);
}

TEST(SlowReport, ABrowserDrawsIt) {
  const Outcome browser = run_shell("command -v chromium chromium-browser google-chrome | head -1");
  if (browser.out.empty()) GTEST_SKIP() << "there is no Chromium here to draw the page";
  const TemporaryDirectory directory("jackscrew_browser");
  const std::string page =
      directory.file("report.html", render_report("my run", some_events(), "a: b"));
  const fs::path picture = directory.path() / "page.png";
  const Outcome drawn = run_shell(fmt::format(
      "cd {} && HOME={} timeout 120 {} --headless --no-sandbox --disable-gpu --hide-scrollbars "
      "--window-size=1100,1400 --screenshot=page.png {} 2>&1",
      directory.path().string(), directory.path().string(),
      browser.out.substr(0, browser.out.find('\n')), page));
  ASSERT_EQ(drawn.exit_code, 0) << drawn.out;
  // An empty page of this size takes about 6 kB.
  EXPECT_GT(fs::file_size(picture), 40000u) << drawn.out;
}

}  // namespace
}  // namespace jackscrew
