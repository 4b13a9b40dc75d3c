// A worker in plain Go, with nothing to install: ONWARD_SERVER=http://127.0.0.1:7400 WORKER_ID=go-1 go run worker.go
package main

import (
	"bytes"
	"encoding/json"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

type object = map[string]any

var worker, incarnation = os.Getenv("WORKER_ID"), time.Now().String() // the same, and another, after a restart
var signals = make(chan os.Signal, 1)                                 // not empty: give the job back, and leave

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
		request, _ := http.NewRequest("POST", os.Getenv("ONWARD_SERVER")+"/v1"+path, bytes.NewReader(text))
		request.Header.Set("Content-Type", "application/json")
		if token := os.Getenv("ONWARD_TOKEN"); token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		if response, err := http.DefaultClient.Do(request); err != nil { // for example while the node restarts
			log.Print(err, " (trying again)")
		} else if err = json.NewDecoder(response.Body).Decode(&answer); response.Body.Close() != nil || err != nil {
			log.Print(err, " (trying again)")
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
	for len(signals) == 0 {
		poll := object{"worker_id": worker, "incarnation": incarnation, "kinds": []string{"count"}, "wait_s": 5, "lease_s": 30}
		for _, lease := range call("/leases", poll)["leases"].([]any) {
			work(lease.(object))
		}
	}
	call("/workers/"+worker+"/goodbye", object{"incarnation": incarnation})
}
