// A worker in plain Go, with nothing to install: onward submit --kind count --payload '{"steps": 20}'; go run worker.go
package main

import (
	"encoding/json"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

type object = map[string]any

var server = strings.Fields(os.Getenv("ONWARD_SERVER") + " http://127.0.0.1:7400")[0] // what is set, or else this
var worker = strings.Fields(os.Getenv("WORKER_ID") + " go-1")[0]                      // the same after a restart
var incarnation, signals = time.Now().String(), make(chan os.Signal, 1)               // a signal: give the job back, and leave

// handle is the work. It reports each step once it is done, and ends as progress says.
func handle(payload object, checkpoint any, progress func(done, total float64) (end object)) (end object) {
	for done, _ := checkpoint.(float64); end == nil; end = progress(done, payload["steps"].(float64)) {
		pause, _ := payload["pause_s"].(float64)
		time.Sleep(time.Duration(pause * float64(time.Second)))
		done++
	}
	return end
}

// call repeats what was not answered: every call here is safe to repeat. Nil: the attempt is not ours any more.
func call(path string, body any) (answer object) {
	for ; ; time.Sleep(time.Second) {
		text, _ := json.Marshal(body)
		request, _ := http.NewRequest("POST", server+"/v1"+path, strings.NewReader(string(text)))
		request.Header.Set("Content-Type", "application/json")
		if token := os.Getenv("ONWARD_TOKEN"); token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil || json.NewDecoder(response.Body).Decode(&answer) != nil || response.Body.Close() != nil {
			log.Print("no answer, trying again: ", err) // for example while the node restarts
		} else if response.StatusCode == 200 {
			return answer
		} else if response.StatusCode == 409 {
			return nil
		} else if code := response.StatusCode; code != 429 && code != 503 {
			log.Fatal(path, ": ", response.Status, " ", answer["detail"])
		}
	}
}

func work(lease object) {
	path, began, left := "/leases/"+lease["receipt"].(string), time.Now(), lease["deadline_remaining_ms"].(float64)
	end := handle(lease["payload"].(object), lease["checkpoint"], func(done, total float64) object {
		beat := call(path+"/beat", object{"watermark": done, "total": total, "checkpoint": done})
		if beat == nil {
			return object{}
		} else if beat["cancel"] == true {
			return object{"fail": object{"error": "cancelled", "retryable": false}}
		} else if done >= total {
			return object{"succeed": object{"result": object{"counted_to": done}}}
		} else if len(signals) > 0 {
			return object{"release": object{"checkpoint": done}}
		} else if left-float64(time.Since(began).Milliseconds()) < 10_000 { // more time is granted for progress
			granted := call(path+"/request-extension", object{"reason": "long_workflow", "progress": done / total})
			more, _ := granted["extension_ms"].(float64)
			left += more
		}
		return nil
	})
	for verb, body := range end {
		log.Print(lease["job_id"], " ", verb, " ", call(path+"/"+verb, body) != nil)
	}
}

func main() {
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	poll := object{"worker_id": worker, "incarnation": incarnation, "kinds": []string{"count"}, "wait_s": 5, "lease_s": 30}
	for len(signals) == 0 {
		for _, lease := range call("/leases", poll)["leases"].([]any) {
			work(lease.(object))
		}
	}
	call("/workers/"+worker+"/goodbye", object{"incarnation": incarnation})
}
