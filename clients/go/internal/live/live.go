// Package live runs a real Headrace service, with the simulator as its engine, for tests. It needs the repository around
// this module and its .venv; where they are missing tests are skipped, and fail if CI is set.
package live

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TargetVariable names a service that runs already; tests that need no settings of their own then use that.
const TargetVariable = "HEADRACE_TEST_TARGET"

const (
	startTimeout = 60 * time.Second
	endTimeout   = 15 * time.Second
)

var serving = regexp.MustCompile(`serving on (127\.0\.0\.1:\d+)`)

// Service starts a service for the length of a test, with flags of its own, and returns its target.
func Service(t testing.TB, flags ...string) string {
	t.Helper()
	target, stop, err := start(python(t), flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return target
}

// Shared is a service for all tests of a package: started when it is first asked for, ended by Close.
type Shared struct {
	Flags  []string
	once   sync.Once
	target string
	stop   func()
	err    error
}

// Target returns the service's target.
func (s *Shared) Target(t testing.TB) string {
	t.Helper()
	if target := os.Getenv(TargetVariable); target != "" {
		return target
	}
	interpreter := python(t)
	s.once.Do(func() { s.target, s.stop, s.err = start(interpreter, s.Flags...) })
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.target
}

// Close ends the service, if it was started.
func (s *Shared) Close() {
	if s.stop != nil {
		s.stop()
	}
}

// Root returns the repository's root, or "" if this module stands alone.
func Root() string {
	folder, _ := os.Getwd()
	for folder != filepath.Dir(folder) {
		if _, err := os.Stat(filepath.Join(folder, "protos", "headrace", "v1")); err == nil {
			return folder
		}
		folder = filepath.Dir(folder)
	}
	return ""
}

func python(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("SERVER_PYTHON"); path != "" {
		return path
	}
	path := filepath.Join(Root(), ".venv", "bin", "python")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if os.Getenv("CI") != "" {
		t.Fatal("no service to test against: make .venv/.run makes one")
	}
	t.Skip("no service to test against: make .venv/.run makes one, or set " + TargetVariable)
	return ""
}

func start(python string, flags ...string) (string, func(), error) {
	arguments := append([]string{"-m", "service", "--backend", "simulator", "--grpc-port", "0", "--shutdown-grace-s", "1"}, flags...)
	command := exec.Command(python, arguments...)
	command.Dir = Root()
	for _, variable := range os.Environ() { // no settings of the person who runs the tests
		if !strings.HasPrefix(variable, "HEADRACE_") && !strings.HasPrefix(variable, "OTEL_") {
			command.Env = append(command.Env, variable)
		}
	}
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the tests alone
	output, err := command.StderrPipe()
	if err != nil {
		return "", nil, err
	}
	command.Stdout = command.Stderr
	if err := command.Start(); err != nil {
		return "", nil, err
	}
	stop := func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(endTimeout, func() { _ = command.Process.Kill() })
		defer kill.Stop()
		_ = command.Wait()
	}
	target, err := awaitTarget(output)
	if err != nil {
		stop()
		return "", nil, err
	}
	return target, stop, nil
}

// awaitTarget returns the address that the service says it serves on, and reads its log from then on.
func awaitTarget(output io.Reader) (string, error) {
	found := make(chan string, 1)
	go func() {
		defer close(found)
		var log strings.Builder
		lines := bufio.NewScanner(output)
		for lines.Scan() {
			if match := serving.FindStringSubmatch(lines.Text()); match != nil {
				found <- match[1]
				break
			}
			fmt.Fprintln(&log, lines.Text())
		}
		_, _ = io.Copy(io.Discard, output)
		if lines.Err() == nil && log.Len() > 0 {
			select {
			case found <- "\n" + log.String(): // it ended without a target
			default:
			}
		}
	}()
	select {
	case target := <-found:
		if target == "" || strings.HasPrefix(target, "\n") {
			return "", fmt.Errorf("the service did not start:%s", target)
		}
		return target, nil
	case <-time.After(startTimeout):
		return "", fmt.Errorf("the service did not start in %s", startTimeout)
	}
}
