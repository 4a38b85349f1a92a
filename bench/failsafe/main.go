// Backend P with failsafe-go's adaptive limiter in it: 16 goroutines that sleep.
//
// Arguments: port, mean work in microseconds, workers, seed, and 1 for four classes by priority.
package main

import (
	"context"
	"fmt"
	"math/rand"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/priority"
)

var priorities = map[string]priority.Priority{
	"/critical": priority.VeryHigh,
	"/write":    priority.High,
	"/read":     priority.Medium,
	"/test":     priority.Low,
}

type job struct {
	time time.Duration
	done chan struct{}
}

func number(text string) int64 {
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return number
}

func main() {
	port, mean, workers := number(os.Args[1]), float64(number(os.Args[2])), number(os.Args[3])
	random := rand.New(rand.NewSource(number(os.Args[4])))
	var lock sync.Mutex
	jobs := make(chan job, 100_000)
	for range workers {
		go func() {
			for next := range jobs {
				time.Sleep(next.time)
				close(next.done)
			}
		}()
	}
	// Waits for a worker, however long it takes: a worker does not know which clients have given up.
	work := func() {
		lock.Lock()
		next := job{time.Duration(random.ExpFloat64() * mean * 1_000), make(chan struct{})}
		lock.Unlock()
		jobs <- next
		<-next.done
	}
	acquire, limit := limiter(os.Args[5] == "1")
	http.HandleFunc("/limit", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, limit()) })
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		permit, isAdmitted := acquire(r.URL.Path)
		if !isAdmitted {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		work()
		permit.Record()
		fmt.Fprint(w, "xx")
	})
	panic(http.ListenAndServe(fmt.Sprintf("127.0.0.1:%d", port), nil))
}

// limiter returns the limiter with its defaults: without a queue, or with its queue by priority.
func limiter(hasClasses bool) (func(string) (adaptivelimiter.Permit, bool), func() int) {
	builder := adaptivelimiter.NewBuilder[any]()
	if !hasClasses {
		plain := builder.Build()
		return func(string) (adaptivelimiter.Permit, bool) { return plain.TryAcquirePermit() }, plain.Limit
	}
	prioritizer := adaptivelimiter.NewPrioritizer()
	prioritizer.ScheduleCalibrations(context.Background(), time.Second)
	graded := builder.BuildPrioritized(prioritizer)
	return func(path string) (adaptivelimiter.Permit, bool) {
		permit, err := graded.AcquirePermitWithPriority(context.Background(), priorities[path])
		return permit, err == nil
	}, graded.Limit
}
