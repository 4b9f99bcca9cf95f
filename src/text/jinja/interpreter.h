// Runs a syntax tree. The output keeps the origin of every byte.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/jinja/runtime.h"
#include "text/jinja/syntax.h"

namespace jackscrew::jinja {

class Nesting;

class Interpreter {
 public:
  // The tree must outlive the interpreter.
  Interpreter(const DateTime& now, const Variables& variables);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Throws Failure; line() is then where it happened.
  Text run(const Block& block);
  int line() const { return line_; }

 private:
  friend class Macro;
  struct Evaluate;
  struct Execute;

  // Assigned names. Loops, macros and blocks have a scope of their own, {% if %} has none.
  struct Scope {
    Scope* parent = nullptr;
    Variables variables;
    bool captured = false;  // a macro or a lazy loop may read it until the end of the run
  };
  // Enters a new innermost scope until destroyed.
  class Enter {
   public:
    Enter(Interpreter& interpreter, Scope* parent);
    ~Enter();
    Enter(const Enter&) = delete;
    Enter& operator=(const Enter&) = delete;

   private:
    Interpreter& interpreter_;
    Scope* outer_;
    std::unique_ptr<Scope> scope_;
  };

  enum class Flow : uint8_t { onward, next_iteration, end_loop };

  // Enters one more level of expressions and statements; throws Failure where there are too many.
  Nesting nest();
  Value evaluate(const Expression& expression);
  Value evaluate_or(const ExpressionPtr& expression, const Value& otherwise);
  Arguments evaluate(const CallArguments& arguments);
  // Applies the filters of {% filter %} and {% set x | filters %}, whose innermost subject is
  // `text`.
  Value evaluate_filters(const Expression& filters, Text text);
  Flow execute(const Statements& statements);
  // Runs in the innermost scope, which must be new.
  Flow execute(const Block& block);
  // Returns what is written during write().
  template <typename Write>
  Text capture(const Write& write);

  Value look_up(const std::string& name) const;
  void set(const std::string& name, Value value);
  void assign(const Target& target, Value value);
  Value make_macro(const MacroBody& body);
  void keep_scopes();

  Runtime runtime_;
  std::vector<std::unique_ptr<Scope>> kept_;
  Scope* scope_ = nullptr;
  Text* out_ = nullptr;
  int line_ = 1;
  int depth_ = 0;
  Scope context_;
};

}  // namespace jackscrew::jinja
